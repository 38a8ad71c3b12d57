//! Tests: slots that are taken by another connection, and stand-ins whose port has no free slot.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use super::connections::close_stand_in;
use super::connections::{adopt, enter, is_room, leave, with_slot};
use super::shared::{self, MAX_SLOTS, Slot};
use crate::sockets::SockAddr;
use crate::table;

#[test]
fn a_stand_in_of_an_ended_process_stands_for_no_other_connection() {
    assert!(shared::prepare());
    let stand_in = SockAddr::new([127, 0, 3, 1].into(), 54_000);
    let index = shared::claim(&stand_in, 80, (&stand_in, &stand_in), (-1, 0)).unwrap();
    let accepted = shared::accepted(&stand_in, || Some(80)).unwrap();
    // The slot's process ends, and another thread of this process takes the slot.
    shared::slot(index).unwrap().free();
    let (_client, server) = crate::calls::tests::connection();
    let rsocket = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert_eq!(shared::claim(&stand_in, 80, (&stand_in, &stand_in), (-1, 0)), Some(index));
    assert!(enter(index, rsocket.as_raw_fd(), -1).is_some());
    assert!(adopt(server.as_raw_fd(), accepted).is_none());
    assert_eq!(table::get(server.as_raw_fd()), None);
    let accepted = shared::Accepted { generation: shared::slot(index).map_or(0, Slot::generation), ..accepted };
    assert!(adopt(server.as_raw_fd(), accepted).is_some());
    let entry = table::swap(server.as_raw_fd(), None);
    assert_eq!(entry.map(|entry| entry.handle), Some(rsocket.as_raw_fd()));
    assert!(table::drop(rsocket.as_raw_fd()));
    leave(index);
}

#[test]
fn a_stand_in_whose_port_has_no_slot_gets_another_port() {
    assert!(shared::prepare());
    let made = std::cell::Cell::new(0);
    let stand_in = || {
        made.set(made.get() + 1);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        Some(std::os::fd::IntoRawFd::into_raw_fd(socket))
    };
    let name = SockAddr::new([127, 0, 3, 2].into(), 55_000);
    // The slots of the first three ports are taken.
    let claim = |own: &SockAddr| {
        (made.get() == 4).then(|| shared::claim(&own.with_port(55_000), 80, (&name, &name), (-1, 0))).flatten()
    };
    let (found, index) = with_slot(stand_in, claim).unwrap();
    assert_eq!(made.get(), 4);
    shared::slot(index).unwrap().free();
    close_stand_in(found);
    assert!(with_slot(|| Some(-1), |_| None).is_none());
}

#[test]
fn what_is_established_when_there_is_no_room_has_slots() {
    let first_refused = (0..MAX_SLOTS).find(|&count| !is_room(count, false)).unwrap();
    assert!(MAX_SLOTS - first_refused >= super::listeners::MAX_BACKLOG as usize);
    // A full listener does not begin again after one connection has ended.
    assert!(!is_room(first_refused - 1, true) && is_room(first_refused / 2, true));
}
