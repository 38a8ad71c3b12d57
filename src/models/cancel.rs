//! Cancellation: no thread of a model is cancelled.

pub fn in_call<T>(call: impl FnOnce() -> T) -> T {
    call()
}

pub fn test() {}

pub fn sleep<T>(call: impl FnOnce() -> T) -> T {
    call()
}

pub fn sleep_anywhere<T>(call: impl FnOnce() -> T) -> T {
    call()
}

pub fn with_cleanup<T>(_undo: impl FnMut(), sleep: impl FnOnce() -> T) -> T {
    sleep()
}
