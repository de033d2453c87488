"""Railwright brings bare NVIDIA GPU machines to tuned, certified training nodes, and keeps them so."""

__version__ = "0.1.0"
