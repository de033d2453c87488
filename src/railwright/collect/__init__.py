"""`railwright collect`: what a machine is, redacted, in one file that a person may carry away.

Standard library only, Python 3.9 and later, relative imports only: all of this but `script` travels inside the script
that `script.build` makes. It reads through `railwright.node.discover` and writes one file.
"""
