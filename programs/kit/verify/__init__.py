"""rdmacm-verify: runs programs on a machine's own librdmacm and on this project's, and compares (README.md)."""
