//! Tests of [`super`].

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
fn udp_then_ud() {
    let (mut peers, now, to) = (Peers::<u8>::new(LIFETIME), Instant::now(), addr(1));
    assert_eq!(peers.route(to, now), Ok((Route::Udp, None)));
    assert_eq!(peers.heard(to, qp(9, to, now), false), Ok(Some(to.ip())));
    assert_eq!(peers.route(to, now), Ok((Route::Udp, None)), "only one search");
    peers.found(&to, to.ip(), Ok(3), now);
    assert_eq!(peers.route(to, now), Ok((Route::Udp, None)), "one is unanswered");
    peers.heard(to, qp(9, to, now), false).unwrap();
    peers.heard(to, qp(9, to, now), false).unwrap();
    assert_eq!(peers.route(to, now), Ok((Route::Ud(3, 9), None)));
    assert_eq!(peers.heard(to, qp(10, to, now), true), Ok(None));
    assert_eq!(peers.route(to, now), Ok((Route::Udp, None)), "another QP has to answer first");
    peers.heard(to, qp(10, to, now), false).unwrap();
    assert_eq!(peers.route(to, now), Ok((Route::Ud(3, 10), None)), "another QP on the same path");
}

#[test]
fn who_asked_is_answered_over_ud_at_last() {
    let (mut peers, now, from) = (Peers::<u8>::new(LIFETIME), Instant::now(), addr(1));
    assert_eq!(peers.heard(from, qp(9, from, now), true), Ok(None), "no search for who only sent");
    assert_eq!(peers.route(from, now), Ok((Route::Udp, Some(from.ip()))));
    peers.found(&from, from.ip(), Ok(3), now);
    assert_eq!(peers.route(from, now + SETTLE), Ok((Route::Udp, None)), "no answer yet");
    peers.heard(from, qp(9, from, now), false).unwrap();
    assert_eq!(peers.route(from, now + SETTLE), Ok((Route::Ud(3, 9), None)), "one of the answers got lost");
}

#[test]
fn an_answer_that_nobody_asked_for_is_ignored() {
    let (mut peers, now, from) = (Peers::<u8>::new(LIFETIME), Instant::now(), addr(1));
    assert_eq!(peers.heard(from, qp(9, from, now), false), Ok(None));
    assert_eq!(peers.map.len(), 0);
}

#[test]
fn confirmed_again_and_again() {
    let (mut peers, now, to) = (Peers::<u8>::new(LIFETIME), Instant::now(), addr(1));
    peers.route(to, now).unwrap();
    peers.heard(to, qp(9, to, now), false).unwrap();
    peers.found(&to, to.ip(), Ok(3), now);
    let later = now + CONFIRM;
    assert_eq!(peers.route(to, later), Ok((Route::Udp, None)));
    peers.heard(to, qp(11, to, later), false).unwrap();
    assert_eq!(peers.route(to, later), Ok((Route::Ud(3, 11), None)));
}

#[test]
fn failed_searches_wait() {
    let (mut peers, now, to) = (Peers::<u8>::new(LIFETIME), Instant::now(), addr(1));
    peers.route(to, now).unwrap();
    peers.heard(to, qp(9, to, now), false).unwrap();
    peers.found(&to, to.ip(), Err(Errno::ETIMEDOUT), now);
    assert_eq!(peers.route(to, now), Ok((Route::Udp, None)));
    assert_eq!(peers.route(to, now + RETRY), Ok((Route::Udp, Some(to.ip()))));
    peers.not_now(&to);
    assert_eq!(peers.route(to, now + RETRY), Ok((Route::Udp, Some(to.ip()))));
}

#[test]
fn a_moved_qp_needs_another_path() {
    let (mut peers, now, to) = (Peers::<u8>::new(LIFETIME), Instant::now(), addr(1));
    peers.route(to, now).unwrap();
    peers.heard(to, qp(9, to, now), false).unwrap();
    peers.route(to, now).unwrap();
    let other = addr(2).ip();
    let moved = Qp { number: 9, address: other, confirmed: now };
    assert_eq!(peers.heard(to, moved, false), Ok(Some(other)));
    peers.found(&to, to.ip(), Ok(3), now);
    assert_eq!(peers.route(to, now), Ok((Route::Udp, None)), "the path to the former address is of no use");
    peers.found(&to, other, Ok(4), now);
    assert_eq!(peers.route(to, now + SETTLE), Ok((Route::Ud(4, 9), None)));
    assert_eq!((peers.behind(other, 9), peers.behind(to.ip(), 9)), (Some(to), None));
    peers.forget(|&path| path == 4);
    assert_eq!(peers.route(to, now), Ok((Route::Udp, Some(other))));
}

#[test]
fn forged_headers_take_no_place_from_the_programs_peers() {
    let (mut peers, now, mine) = (Peers::<u8>::new(LIFETIME), Instant::now(), addr(0));
    peers.route(mine, now).unwrap();
    peers.heard(mine, qp(9, mine, now), false).unwrap();
    peers.found(&mine, mine.ip(), Ok(3), now);
    for last in 1..20_000 {
        peers.heard(addr(last), qp(9, addr(last), now), true).unwrap();
    }
    assert_eq!(peers.map.len(), 1 + MOST_HEARD);
    assert_eq!(peers.route(mine, now), Ok((Route::Ud(3, 9), None)));
    assert!(peers.map.contains_key(&addr(19_999)));
}

#[test]
fn the_peer_used_longest_ago_goes_first() {
    let (mut peers, now) = (Peers::<u8>::new(LIFETIME), Instant::now());
    for last in 0..MOST_USED as u16 {
        peers.route(addr(last), now).unwrap();
    }
    peers.route(addr(0), now).unwrap();
    peers.route(addr(60_000), now).unwrap();
    assert_eq!(peers.map.len(), MOST_USED);
    assert!(peers.map.contains_key(&addr(0)) && !peers.map.contains_key(&addr(1)));
}

/// A peer to whom datagrams go over UD: QP 9, path 3.
fn acquainted(to: SocketAddr, now: Instant) -> Peers<u8> {
    let mut peers = Peers::new(LIFETIME);
    peers.route(to, now).unwrap();
    peers.heard(to, qp(9, to, now), false).unwrap();
    peers.found(&to, to.ip(), Ok(3), now);
    assert_eq!(peers.route(to, now), Ok((Route::Ud(3, 9), None)));
    peers
}

#[test]
fn a_claim_only_brings_one_question_forward() {
    let (now, to) = (Instant::now(), addr(1));
    let mut peers = acquainted(to, now);
    let soon = now + Duration::from_millis(500);
    for number in 10..1000 {
        assert_eq!(peers.heard(to, qp(number, to, now), true), Ok(None));
    }
    assert_eq!(peers.route(to, now), Ok((Route::Udp, None)), "the question");
    assert_eq!(peers.heard(to, qp(9, to, now), false), Ok(None));
    assert_eq!(peers.route(to, now), Ok((Route::Ud(3, 9), None)), "the QP in use has answered");
    peers.heard(to, qp(10, to, soon), true).unwrap();
    assert_eq!(peers.route(to, soon), Ok((Route::Ud(3, 9), None)), "no question again so soon");
    let later = now + CLAIM_INTERVAL;
    peers.heard(to, qp(10, to, later), true).unwrap();
    assert_eq!(peers.route(to, later), Ok((Route::Udp, None)));
}

#[test]
fn claims_of_another_address_cost_no_search() {
    let (now, to) = (Instant::now(), addr(1));
    let mut peers = acquainted(to, now);
    for last in 2..1000 {
        assert_eq!(peers.heard(to, qp(9, addr(last), now), true), Ok(None));
    }
    let mut peers = Peers::<u8>::new(LIFETIME);
    peers.route(to, now).unwrap();
    assert_eq!(peers.heard(to, qp(9, addr(2), now), true), Ok(Some(addr(2).ip())));
    peers.found(&to, addr(2).ip(), Err(Errno::ENODEV), now);
    for last in 3..1000 {
        assert_eq!(peers.heard(to, qp(9, addr(last), now), true), Ok(None), "after a failure they wait");
    }
}

#[test]
fn a_changed_answer_that_nobody_asked_for_is_ignored() {
    let (now, to) = (Instant::now(), addr(1));
    let mut peers = acquainted(to, now);
    peers.heard(to, qp(10, to, now), false).unwrap();
    assert_eq!(peers.route(to, now), Ok((Route::Ud(3, 9), None)));
}

#[test]
fn paths_in_use_are_renewed_and_serve_meanwhile() {
    let (now, to) = (Instant::now(), addr(1));
    let mut peers = acquainted(to, now);
    let confirmed = |peers: &mut Peers<u8>, at| {
        peers.route(to, at - SETTLE).unwrap();
        peers.heard(to, qp(9, to, at), false).unwrap();
    };
    let due = now + LIFETIME;
    confirmed(&mut peers, due - SETTLE);
    assert_eq!(peers.route(to, due - SETTLE), Ok((Route::Ud(3, 9), None)));
    assert_eq!(peers.route(to, due), Ok((Route::Ud(3, 9), Some(to.ip()))));
    assert_eq!(peers.route(to, due), Ok((Route::Ud(3, 9), None)), "one search at a time");
    peers.not_now(&to);
    assert_eq!(peers.route(to, due), Ok((Route::Ud(3, 9), Some(to.ip()))));
    peers.found(&to, to.ip(), Ok(4), due);
    assert_eq!(peers.route(to, due), Ok((Route::Ud(4, 9), None)));
    let again = due + LIFETIME;
    confirmed(&mut peers, again - SETTLE);
    assert_eq!(peers.route(to, again), Ok((Route::Ud(4, 9), Some(to.ip()))));
    peers.found(&to, to.ip(), Err(Errno::ETIMEDOUT), again);
    assert_eq!(peers.route(to, again), Ok((Route::Ud(4, 9), None)), "the fabric is busy");
    assert_eq!(peers.route(to, again + RETRY).unwrap().1, Some(to.ip()));
    peers.found(&to, to.ip(), Err(Errno::ETIMEDOUT), due + 2 * LIFETIME);
    confirmed(&mut peers, due + 2 * LIFETIME);
    assert_eq!(peers.route(to, due + 2 * LIFETIME), Ok((Route::Udp, None)), "an old path that is not found again");
}

proptest! {
    /// Whatever happens: the counts hold, and UD only goes to a QP that the peer answered with.
    #[test]
    fn any_order(steps in proptest::collection::vec((0_u8..5, 0_u16..6, 2_u32..5), 0..60)) {
        let (mut peers, now) = (Peers::<IpAddr>::new(LIFETIME), Instant::now());
        let mut named = std::collections::HashSet::new();
        for (what, who, number) in steps {
            let who = addr(who);
            match what {
                0 => if let (Route::Ud(path, to), _) = peers.route(who, now).unwrap() {
                    prop_assert!(named.contains(&(who, to)));
                    prop_assert_eq!(path, who.ip());
                },
                1 | 2 => {
                    peers.heard(who, qp(number, who, now), what == 1).unwrap();
                    if what == 2 {
                        named.insert((who, number));
                    }
                }
                3 => peers.found(&who, who.ip(), Ok(who.ip()), now),
                _ => peers.not_now(&who),
            }
            prop_assert_eq!(peers.used, peers.map.values().filter(|peer| peer.used).count());
        }
    }
}
