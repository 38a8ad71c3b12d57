//! The kernel's RDMA user interface and two libibverbs structures, as bindgen reads them from this machine's headers.

// Generated code: names and documentation are those of the C headers.
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals, missing_docs)]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks, unsafe_op_in_unsafe_fn, unused)]

include!(concat!(env!("OUT_DIR"), "/uapi.rs"));
