//! A Rust program that calls librdmacm, and, as an archive, the other Rust library of a C program.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{catch_unwind, set_hook};

unsafe extern "C" {
    safe fn rdma_event_str(event: c_int) -> *const c_char;
    fn rdma_destroy_id(id: *mut c_void) -> c_int;
}

/// Returns whether this library's panics unwind: librdmacm's runtime aborts.
#[unsafe(no_mangle)]
pub extern "C" fn panics_are_caught() -> bool {
    set_hook(Box::new(|_| {}));
    catch_unwind(|| panic!()).is_err()
}

fn main() {
    // SAFETY: the call returns a string; it rejects NULL.
    unsafe {
        assert_eq!(CStr::from_ptr(rdma_event_str(9)), c"RDMA_CM_EVENT_ESTABLISHED");
        assert_eq!(rdma_destroy_id(std::ptr::null_mut()), -1);
    }
    assert!(panics_are_caught());
    println!("works");
}
