//! The C entry points of librdmacm.so.1.
