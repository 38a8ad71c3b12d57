//! Connections whose slot gets another one.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use super::connections::{adopt, enter, leave};
use super::shared::{self, Slot};
use crate::table;
use crate::tcp::name::Name;

#[test]
fn a_token_of_an_ended_process_stands_for_no_other_connection() {
    assert!(shared::prepare());
    let token = Name::new([127, 0, 3, 1].into(), 54_000);
    let index = shared::claim(&token, 80, (&token, &token), (-1, 0)).unwrap();
    shared::slot(index).unwrap().send();
    let accepted = shared::accepted(&token, || Some(80)).unwrap();
    // Its process ends, and another thread of this one takes the slot.
    shared::slot(index).unwrap().free();
    let (_client, number) = crate::test_sockets::connection();
    let rsocket = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert_eq!(shared::claim(&token, 80, (&token, &token), (-1, 0)), Some(index));
    assert!(enter(index, rsocket.as_raw_fd(), -1));
    assert!(adopt(number.as_raw_fd(), accepted).is_none());
    assert_eq!(table::get(number.as_raw_fd()), None);
    let accepted = shared::Accepted { generation: shared::slot(index).map_or(0, Slot::generation), ..accepted };
    assert!(adopt(number.as_raw_fd(), accepted).is_some());
    let entry = table::swap(number.as_raw_fd(), None);
    assert_eq!(entry.map(|entry| entry.inner), Some(rsocket.as_raw_fd()));
    assert!(table::drop(rsocket.as_raw_fd()));
    leave(index);
}
