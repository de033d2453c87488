"""The lab's virtual machine: a GPU server's topology in software emulation, for what only a booted kernel can show."""
