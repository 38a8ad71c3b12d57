//! Calls that execute programs. posix_spawn, system and popen run no handlers of fork(2), and the C
//! library's child does not call this library before it executes the program. So the connections
//! are prepared before the call. vfork becomes fork(2) if the process has connections of automatic
//! mode.

use core::ffi::{c_char, c_int, c_void};

use libc::{FILE, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

use crate::calls::exports;
use crate::next_symbol::Next;
use crate::{auto, errno, fork_handlers};

macro_rules! spawns {
    ($($name:ident;)*) => {
        pub mod spawns {
            use super::*;

            exports_and_next! {$(
                #[doc = concat!(stringify!($name), "(3).")]
                fn $name(
                    child: *mut pid_t,
                    program: *const c_char,
                    actions: *const posix_spawn_file_actions_t,
                    attributes: *const posix_spawnattr_t,
                    arguments: *const *mut c_char,
                    environment: *const *mut c_char,
                ) -> c_int {
                    auto::before_spawn();
                    spawned(|| next::$name(child, program, actions, attributes, arguments, environment))
                }
            )*}
        }
    };
}

// pidfd_spawn and pidfd_spawnp return a pidfd where the others return a pid.
spawns! {
    posix_spawn;
    posix_spawnp;
    pidfd_spawn;
    pidfd_spawnp;
}

/// Returns the errno value that `call` returns, or `ENOSYS` for -1: before glibc 2.39 there is no
/// pidfd_spawn, and its next definition returns -1.
fn spawned(call: impl FnOnce() -> c_int) -> c_int {
    match errno::keeping(call) {
        -1 => libc::ENOSYS,
        result => result,
    }
}

exports_and_next! {
    /// _Fork(3), which runs no handlers of fork(2). Does what the handlers of this library and of
    /// librdmacm would do, but does not run the program's handlers.
    fn _Fork() -> pid_t {
        fork_handlers::around(|| next::_Fork())
    }

    /// posix_spawn_file_actions_adddup2(3): the executed program will inherit `old`. Its data is
    /// forwarded from now on, because the actions cannot be read back at the spawn.
    fn posix_spawn_file_actions_adddup2(
        actions: *mut posix_spawn_file_actions_t,
        old: c_int,
        new: c_int,
    ) -> c_int {
        let result = next::posix_spawn_file_actions_adddup2(actions, old, new);
        if result == 0 {
            auto::outside::give_to_program(old);
        }
        result
    }

    /// system(3).
    fn system(command: *const c_char) -> c_int {
        if !command.is_null() {
            auto::before_spawn();
        }
        next::system(command)
    }

    /// popen(3).
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
        auto::before_spawn();
        next::popen(command, mode)
    }
}

exports! {
    /// Returns the function to which vfork.c jumps for vfork(2): fork(2) if the process has RDMA
    /// connections of automatic mode, or if there is no next vfork. A child of fork(2) has its own
    /// table, in which the connections are kernel sockets, and may make any call on them.
    safe fn librspreload_vfork() -> *const c_void {
        let found = VFORK.get();
        if found.is_null() || auto::has_connections() { libc::fork as *const c_void } else { found }
    }
}

/// The next definition of vfork. Only a jump can reach it, because vfork(2) returns twice.
pub static VFORK: Next = Next::new("vfork\0");
