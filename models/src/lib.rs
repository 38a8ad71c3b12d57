//! Files of the library that are modelled on their own: they must need nothing of the rest but the error type.

#[path = "../../src/errno.rs"]
pub mod errno;
#[path = "../../src/rsocket/table.rs"]
pub mod table;
