//! What only librspreload-full.so exports: the other calls of glibc that take a socket, and those
//! that execute programs ([`spawn`]). Each of the former is served for rsockets by the calls that
//! librspreload.so has, too, and is the next definition for everything else.

mod data;
mod descriptors;
mod direct;
mod next;
mod spawn;
mod waits;

/// The library's DT_INIT: resolves the names before the program runs, because dlsym(3) is not
/// async-signal-safe.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn librspreload_full_at_load() {
    next::resolve();
}
