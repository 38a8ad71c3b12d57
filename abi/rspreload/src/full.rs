//! What only librspreload-full.so exports: the other calls of glibc that take a socket, and calls
//! that execute programs ([`spawn`]). For an rsocket, a socket call is implemented by the calls
//! that librspreload.so exports, too. For other descriptors it goes to the next definition of its
//! name.

/// Defines functions that librspreload-full.so exports, and their next definitions in a module
/// `next`.
macro_rules! exports_and_next {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty $body:block)*) => {
        $crate::calls::exports! { $($(#[$doc])* fn $name($($arg: $type),*) -> $result $body)* }

        pub mod next {
            use super::*;

            $crate::next_symbol::next! { $(c $name($($arg: $type),*) -> $result;)* }
        }
    };
}

mod data;
mod descriptors;
mod direct;
#[allow(non_snake_case, reason = "_Fork is the name in the C library")]
mod spawn;
mod waits;

/// The library's DT_INIT: resolves the names before the program runs, because dlsym(3) is not
/// async-signal-safe.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn librspreload_full_at_load() {
    data::next::resolve();
    data::with_flags::next::resolve();
    descriptors::next::resolve();
    descriptors::variadic::resolve();
    direct::next::resolve();
    spawn::next::resolve();
    spawn::spawns::next::resolve();
    spawn::VFORK.look_up();
    waits::next::resolve();
}
