//! The calls of the connection manager.
