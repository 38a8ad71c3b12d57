//! Tokens of listeners with TCP_DEFER_ACCEPT. The kernel reports a connection there when it has data.
//! So a token gets a byte of the library's when its rsocket has data.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU8, Ordering::SeqCst};

use super::shared::{self, MAX_SLOTS, Slot};
use crate::fork::tcp;
use crate::next_symbol;
use crate::time::Deadline;

/// The listener reports the token at once.
const AT_ONCE: u8 = 0;
/// The rsocket has no data.
const EMPTY: u8 = 1;
/// The rsocket has data, or has ended.
const ARRIVED: u8 = 2;

/// By index of the connection.
static STATES: [AtomicU8; MAX_SLOTS] = [const { AtomicU8::new(AT_ONCE) }; MAX_SLOTS];

static BYTE: u8 = 0;

fn change(index: usize, from: u8, to: u8) {
    if let Some(state) = STATES.get(index) {
        let _ = state.compare_exchange(from, to, SeqCst, SeqCst);
    }
}

/// An index gets another connection.
pub fn reset(index: usize) {
    if let Some(state) = STATES.get(index) {
        state.store(AT_ONCE, SeqCst);
    }
}

/// The listener of a token reports it when data has arrived.
pub fn defer(index: usize) {
    change(index, AT_ONCE, EMPTY);
}

/// What the thread waits for before it [speaks](speak) by a token.
pub enum Awaited {
    /// Data of the rsocket, or its end.
    Data,
    /// The connection of the token: a full queue of the listener delays it.
    Connection,
}

/// What a token waits for, if it waits for accept(2) and the listener does not report it at once.
pub fn awaited(index: usize) -> Option<Awaited> {
    let awaited = match STATES.get(index)?.load(SeqCst) {
        EMPTY => Awaited::Data,
        ARRIVED => Awaited::Connection,
        _ => return None,
    };
    shared::slot(index).filter(|slot| slot.is_silent()).map(|_| awaited)
}

/// The rsocket of a token has data, or has ended.
pub fn data_arrived(index: usize) {
    change(index, EMPTY, ARRIVED);
}

/// Sends the byte by a token that is connected.
pub fn speak(index: usize, token: c_int) {
    if token >= 0 && shared::slot(index).is_some_and(Slot::speak) {
        // SAFETY: one byte is readable.
        unsafe { next_symbol::send(token, (&raw const BYTE).cast::<c_void>(), 1, libc::MSG_NOSIGNAL) };
    }
}

/// Takes the byte from `fd`, which accept(2) has got. It may be on its way if the listener has not
/// waited for it.
pub fn take_spoken(fd: c_int) {
    let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    tcp::poll(&mut fds, &Deadline::after(1_000));
    let mut byte = 0_u8;
    // SAFETY: one byte is writable.
    unsafe { next_symbol::recv(fd, (&raw mut byte).cast::<c_void>(), 1, libc::MSG_DONTWAIT) };
}
