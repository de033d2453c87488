"""What package systems write and say: dpkg's and rpm's records, apt's and dnf's answers. Texts in, values out."""
