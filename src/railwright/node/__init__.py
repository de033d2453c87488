"""What runs on a node: the data model, the one reader, the one writer, the check and the boot entry.

Standard library only, Python 3.9 and later, relative imports only: Ansible ships these files to nodes as
`ansible.module_utils.railwright.node`, and the boot unit runs them from a zipapp.
"""
