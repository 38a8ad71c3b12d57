//! Tests of the routes to peers.

use proptest::prelude::*;

use super::*;

const LIFETIME: Duration = Duration::from_secs(30);

fn addr(last: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, (last >> 8) as u8, last as u8], 7))
}

fn qp(number: u32, from: SocketAddr, confirmed: Instant) -> Qp {
    Qp { number, address: from.ip(), confirmed }
}

#[test]
fn datagrams_go_over_udp_first_and_then_over_ud() {
    let (mut peers, now, to) = (Peers::<u8>::new(LIFETIME), Instant::now(), addr(1));
    assert_eq!(peers.route(to, now), Ok((Route::Udp, None)));
    assert_eq!(peers.header_received(to, qp(9, to, now), false), Ok(Some(to.ip())));
    assert_eq!(peers.route(to, now), Ok((Route::Udp, None)), "one search only");
    peers.search_finished(&to, to.ip(), Ok(3), now);
    assert_eq!(peers.route(to, now), Ok((Route::Udp, None)), "one is unanswered");
    peers.header_received(to, qp(9, to, now), false).unwrap();
    peers.header_received(to, qp(9, to, now), false).unwrap();
    assert_eq!(peers.route(to, now), Ok((Route::Ud(3, 9), None)));
    assert_eq!(peers.header_received(to, qp(10, to, now), true), Ok(None));
    assert_eq!(peers.route(to, now), Ok((Route::Udp, None)), "another QP has to answer first");
    peers.header_received(to, qp(10, to, now), false).unwrap();
    assert_eq!(peers.route(to, now), Ok((Route::Ud(3, 10), None)), "another QP on the same path");
}

#[test]
fn a_peer_that_requested_an_answer_is_reached_over_ud_eventually() {
    let (mut peers, now, from) = (Peers::<u8>::new(LIFETIME), Instant::now(), addr(1));
    assert_eq!(peers.header_received(from, qp(9, from, now), true), Ok(None), "no search for a mere sender");
    assert_eq!(peers.route(from, now), Ok((Route::Udp, Some(from.ip()))));
    peers.search_finished(&from, from.ip(), Ok(3), now);
    assert_eq!(peers.route(from, now + REORDER_DELAY), Ok((Route::Udp, None)), "no answer yet");
    peers.header_received(from, qp(9, from, now), false).unwrap();
    assert_eq!(peers.route(from, now + REORDER_DELAY), Ok((Route::Ud(3, 9), None)), "another answer was lost");
}

#[test]
fn unsolicited_answers_are_ignored() {
    let (mut peers, now, from) = (Peers::<u8>::new(LIFETIME), Instant::now(), addr(1));
    assert_eq!(peers.header_received(from, qp(9, from, now), false), Ok(None));
    assert_eq!(peers.map.len(), 0);
}

#[test]
fn the_qp_is_confirmed_periodically() {
    let (mut peers, now, to) = (Peers::<u8>::new(LIFETIME), Instant::now(), addr(1));
    peers.route(to, now).unwrap();
    peers.header_received(to, qp(9, to, now), false).unwrap();
    peers.search_finished(&to, to.ip(), Ok(3), now);
    let later = now + CONFIRM_INTERVAL;
    assert_eq!(peers.route(to, later), Ok((Route::Udp, None)));
    peers.header_received(to, qp(11, to, later), false).unwrap();
    assert_eq!(peers.route(to, later), Ok((Route::Ud(3, 11), None)));
}

#[test]
fn failed_searches_are_repeated_after_a_delay() {
    let (mut peers, now, to) = (Peers::<u8>::new(LIFETIME), Instant::now(), addr(1));
    peers.route(to, now).unwrap();
    peers.header_received(to, qp(9, to, now), false).unwrap();
    peers.search_finished(&to, to.ip(), Err(Errno::ETIMEDOUT), now);
    assert_eq!(peers.route(to, now), Ok((Route::Udp, None)));
    assert_eq!(peers.route(to, now + RETRY_DELAY), Ok((Route::Udp, Some(to.ip()))));
    peers.search_not_started(&to);
    assert_eq!(peers.route(to, now + RETRY_DELAY), Ok((Route::Udp, Some(to.ip()))));
}

#[test]
fn a_qp_at_another_address_needs_another_path() {
    let (mut peers, now, to) = (Peers::<u8>::new(LIFETIME), Instant::now(), addr(1));
    peers.route(to, now).unwrap();
    peers.header_received(to, qp(9, to, now), false).unwrap();
    peers.route(to, now).unwrap();
    let other = addr(2).ip();
    let moved = Qp { number: 9, address: other, confirmed: now };
    assert_eq!(peers.header_received(to, moved, false), Ok(Some(other)));
    peers.search_finished(&to, to.ip(), Ok(3), now);
    assert_eq!(peers.route(to, now), Ok((Route::Udp, None)), "the path to the old address is unusable");
    peers.search_finished(&to, other, Ok(4), now);
    assert_eq!(peers.route(to, now + REORDER_DELAY), Ok((Route::Ud(4, 9), None)));
    assert_eq!((peers.find_by_qp(other, 9), peers.find_by_qp(to.ip(), 9)), (Some(to), None));
    peers.forget(|&path| path == 4);
    assert_eq!(peers.route(to, now), Ok((Route::Udp, Some(other))));
}

#[test]
fn forged_headers_do_not_displace_the_programs_peers() {
    let (mut peers, now, used_peer) = (Peers::<u8>::new(LIFETIME), Instant::now(), addr(0));
    peers.route(used_peer, now).unwrap();
    peers.header_received(used_peer, qp(9, used_peer, now), false).unwrap();
    peers.search_finished(&used_peer, used_peer.ip(), Ok(3), now);
    for last in 1..20_000 {
        peers.header_received(addr(last), qp(9, addr(last), now), true).unwrap();
    }
    assert_eq!(peers.map.len(), 1 + MAX_HEARD);
    assert_eq!(peers.route(used_peer, now), Ok((Route::Ud(3, 9), None)));
    assert!(peers.map.contains_key(&addr(19_999)));
}

#[test]
fn the_least_recently_used_peer_is_evicted() {
    let (mut peers, now) = (Peers::<u8>::new(LIFETIME), Instant::now());
    for last in 0..MAX_USED as u16 {
        peers.route(addr(last), now).unwrap();
    }
    peers.route(addr(0), now).unwrap();
    peers.route(addr(60_000), now).unwrap();
    assert_eq!(peers.map.len(), MAX_USED);
    assert!(peers.map.contains_key(&addr(0)) && !peers.map.contains_key(&addr(1)));
}

/// Returns peers with one that is reached over UD: QP 9, path 3.
fn reached_over_ud(to: SocketAddr, now: Instant) -> Peers<u8> {
    let mut peers = Peers::new(LIFETIME);
    peers.route(to, now).unwrap();
    peers.header_received(to, qp(9, to, now), false).unwrap();
    peers.search_finished(&to, to.ip(), Ok(3), now);
    assert_eq!(peers.route(to, now), Ok((Route::Ud(3, 9), None)));
    peers
}

#[test]
fn claims_cause_one_early_confirmation() {
    let (now, to) = (Instant::now(), addr(1));
    let mut peers = reached_over_ud(to, now);
    let soon = now + Duration::from_millis(500);
    for number in 10..1000 {
        assert_eq!(peers.header_received(to, qp(number, to, now), true), Ok(None));
    }
    assert_eq!(peers.route(to, now), Ok((Route::Udp, None)), "the request");
    assert_eq!(peers.header_received(to, qp(9, to, now), false), Ok(None));
    assert_eq!(peers.route(to, now), Ok((Route::Ud(3, 9), None)), "the QP in use has answered");
    peers.header_received(to, qp(10, to, soon), true).unwrap();
    assert_eq!(peers.route(to, soon), Ok((Route::Ud(3, 9), None)), "no further request so soon");
    let later = now + CLAIM_INTERVAL;
    peers.header_received(to, qp(10, to, later), true).unwrap();
    assert_eq!(peers.route(to, later), Ok((Route::Udp, None)));
}

#[test]
fn claims_of_other_addresses_start_no_searches() {
    let (now, to) = (Instant::now(), addr(1));
    let mut peers = reached_over_ud(to, now);
    for last in 2..1000 {
        assert_eq!(peers.header_received(to, qp(9, addr(last), now), true), Ok(None));
    }
    let mut peers = Peers::<u8>::new(LIFETIME);
    peers.route(to, now).unwrap();
    assert_eq!(peers.header_received(to, qp(9, addr(2), now), true), Ok(Some(addr(2).ip())));
    peers.search_finished(&to, addr(2).ip(), Err(Errno::ENODEV), now);
    for last in 3..1000 {
        assert_eq!(peers.header_received(to, qp(9, addr(last), now), true), Ok(None), "delayed after a failure");
    }
}

#[test]
fn unsolicited_answers_with_another_qp_are_ignored() {
    let (now, to) = (Instant::now(), addr(1));
    let mut peers = reached_over_ud(to, now);
    peers.header_received(to, qp(10, to, now), false).unwrap();
    assert_eq!(peers.route(to, now), Ok((Route::Ud(3, 9), None)));
}

#[test]
fn paths_are_resolved_again_while_in_use() {
    let (now, to) = (Instant::now(), addr(1));
    let mut peers = reached_over_ud(to, now);
    let confirmed = |peers: &mut Peers<u8>, at| {
        peers.route(to, at - REORDER_DELAY).unwrap();
        peers.header_received(to, qp(9, to, at), false).unwrap();
    };
    let due = now + LIFETIME;
    confirmed(&mut peers, due - REORDER_DELAY);
    assert_eq!(peers.route(to, due - REORDER_DELAY), Ok((Route::Ud(3, 9), None)));
    assert_eq!(peers.route(to, due), Ok((Route::Ud(3, 9), Some(to.ip()))));
    assert_eq!(peers.route(to, due), Ok((Route::Ud(3, 9), None)), "one search at a time");
    peers.search_not_started(&to);
    assert_eq!(peers.route(to, due), Ok((Route::Ud(3, 9), Some(to.ip()))));
    peers.search_finished(&to, to.ip(), Ok(4), due);
    assert_eq!(peers.route(to, due), Ok((Route::Ud(4, 9), None)));
    let again = due + LIFETIME;
    confirmed(&mut peers, again - REORDER_DELAY);
    assert_eq!(peers.route(to, again), Ok((Route::Ud(4, 9), Some(to.ip()))));
    peers.search_finished(&to, to.ip(), Err(Errno::ETIMEDOUT), again);
    assert_eq!(peers.route(to, again), Ok((Route::Ud(4, 9), None)), "the fabric is busy");
    assert_eq!(peers.route(to, again + RETRY_DELAY).unwrap().1, Some(to.ip()));
    peers.search_finished(&to, to.ip(), Err(Errno::ETIMEDOUT), due + 2 * LIFETIME);
    confirmed(&mut peers, due + 2 * LIFETIME);
    assert_eq!(peers.route(to, due + 2 * LIFETIME), Ok((Route::Udp, None)), "an expired path");
}

proptest! {
    /// For any sequence of events, the counters are correct, and UD is used only for QPs that were
    /// in an answer of the peer.
    #[test]
    fn counters_and_routes_are_correct(steps in proptest::collection::vec((0_u8..5, 0_u16..6, 2_u32..5), 0..60)) {
        let (mut peers, now) = (Peers::<IpAddr>::new(LIFETIME), Instant::now());
        let mut named = std::collections::HashSet::new();
        for (action, peer, number) in steps {
            let peer = addr(peer);
            match action {
                0 => if let (Route::Ud(path, to), _) = peers.route(peer, now).unwrap() {
                    prop_assert!(named.contains(&(peer, to)));
                    prop_assert_eq!(path, peer.ip());
                },
                1 | 2 => {
                    peers.header_received(peer, qp(number, peer, now), action == 1).unwrap();
                    if action == 2 {
                        named.insert((peer, number));
                    }
                }
                3 => peers.search_finished(&peer, peer.ip(), Ok(peer.ip()), now),
                _ => peers.search_not_started(&peer),
            }
            prop_assert_eq!(peers.used, peers.map.values().filter(|peer| peer.used).count());
        }
    }
}
