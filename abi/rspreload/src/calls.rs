//! The functions that the library exports, by their manual pages' names. Each asks
//! [`crate::fds`] where it goes.

/// Defines functions that the library exports, each after its manual page. The program guarantees
/// what their pointers point at. A `safe fn` has no pointers.
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
            // SAFETY: the C contract of the function.
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
pub use descriptors::{accept4, close, connect, dup, dup2, fcntl};
