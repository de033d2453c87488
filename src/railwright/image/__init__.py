"""The bare-metal image: a root file system with the stack, the program and the policy, sealed, as disk and tarball.

Runs on the controller (Linux, as root). Nothing here mounts anything outside of a mount namespace that ends with its
process, and every stage is published whole or not at all.
"""

from .bake import Baked, bake
from .recipe import Recipe
from .seal import leftovers

__all__ = ["Baked", "Recipe", "bake", "leftovers"]
