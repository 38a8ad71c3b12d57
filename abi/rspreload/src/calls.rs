//! The functions that the library exports. Each has the name of the C function that it replaces,
//! and asks [`crate::fds`] what is behind the descriptor.

/// Defines exported functions, each of which behaves as its manual page says. The program
/// guarantees that pointer arguments are valid as the page requires. A `safe fn` takes no pointers.
macro_rules! exports {
    () => {};
    ($(#[$doc:meta])* safe fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty $body:block $($more:tt)*) => {
        $(#[$doc])*
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub extern "C" fn $name($($arg: $type),*) -> $result $body

        $crate::calls::exports! { $($more)* }
    };
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty $body:block $($more:tt)*) => {
        $(#[$doc])*
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $result {
            // SAFETY: the program keeps the C contract of `$name` (crate documentation): the
            // pointers among its arguments are valid as its manual page requires.
            unsafe { $body }
        }

        $crate::calls::exports! { $($more)* }
    };
}
pub(crate) use exports;

mod data;
mod descriptors;
#[cfg(test)]
pub mod tests;
pub mod waits;

pub use data::{
    getpeername, getsockname, getsockopt, read, readv, recv, recvfrom, recvmsg, send, sendmsg, sendto, setsockopt,
    shutdown, write, writev,
};
pub use descriptors::{accept4, close, connect, dup, dup2};
