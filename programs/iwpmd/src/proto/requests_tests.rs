use super::*;

const HEADER: Header = Header { client: 2, op: 2, seq: 9 };

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn from_to(local: &str, remote: &str, now: u64) -> Query {
    let local = address(local);
    let mut mapped = local;
    mapped.set_port(40_000);
    let mapping = Mapping {
        local,
        mapped,
        owner: 2,
        id: PortId(1),
        bound: true,
        references: 1,
        surplus_removals: 0,
        removals: 0,
        last_used: 0,
        listed: (0, 0),
    };
    Query::new(HEADER, &mapping, address(remote), now)
}

fn query(now: u64) -> Query {
    from_to("10.0.0.1:8000", "10.0.0.2:9000", now)
}

/// Returns a generator of consecutive numbers from 1.
fn counting() -> impl FnMut() -> u64 {
    let mut last = 0;
    move || {
        last += 1;
        last
    }
}

#[test]
fn a_query_is_sent_ten_times_in_ten_seconds() {
    let (mut queries, mut random) = (Queries::default(), counting());
    assert!(queries.add(query(5), &mut random).is_some());
    let mut sent = 1;
    loop {
        let now = queries.deadline().unwrap();
        assert!(queries.due(now - 1).is_none());
        match queries.due(now) {
            Some(Due::Resend(to, message)) => {
                assert_eq!((to, message.handle), (address("10.0.0.2:3935"), 1));
                sent += 1;
            }
            Some(Due::TimedOut(query)) => {
                assert_eq!((now, sent, query.header), (5 + QUERY_TIMEOUT_MS, 10, HEADER));
                break;
            }
            None => panic!("nothing is due"),
        }
        assert!(queries.due(now).is_none());
    }
    assert!(queries.len() == 0 && queries.deadline().is_none());
}

/// 0 is no handle, and a handle that is in use is not used again.
#[test]
fn handles_differ() {
    let mut queries = Queries::default();
    let handles = [(); 3].map(|()| queries.add(query(0), &mut || 0).unwrap().handle);
    assert_eq!(handles, [1, 2, 3]);
}

#[test]
fn a_long_sleep_causes_no_burst() {
    let (mut queries, mut random) = (Queries::default(), counting());
    queries.add(query(0), &mut random);
    assert!(matches!(queries.due(5 * RESEND_INTERVAL_MS), Some(Due::Resend(..))));
    assert!(queries.due(5 * RESEND_INTERVAL_MS).is_none());
    assert!(matches!(queries.due(100 * RESEND_INTERVAL_MS), Some(Due::TimedOut(_))));
}

#[test]
fn only_the_queried_host_answers_and_only_its_query() {
    let (mut queries, mut random) = (Queries::default(), counting());
    let sent = queries.add(query(0), &mut random).unwrap();
    let accept = sent.answer(Kind::Accept);
    let peer = address("10.0.0.2:3935");
    let guessed = Message { handle: sent.handle + 1, ..accept };
    let other = Message { cp: accept.ap, ..accept };
    for (from, answer) in
        [(address("10.0.0.3:3935"), accept), (address("10.0.0.2:3936"), accept), (peer, guessed), (peer, other)]
    {
        assert!(queries.answered_by(from, &answer).is_none(), "{from} {answer:?}");
    }
    let query = queries.answered_by(peer, &accept).unwrap();
    assert!(!query.answered);
    query.answered = true;
    assert!(queries.due(RESEND_INTERVAL_MS).is_none(), "an answered query is not resent");
    assert!(queries.answered_by(peer, &accept).is_some_and(|query| query.answered), "the answer may be repeated");
    assert!(queries.due(QUERY_TIMEOUT_MS).is_none());
    assert!(queries.due(QUERY_TIMEOUT_MS + RESEND_INTERVAL_MS).is_none());
    assert!(queries.len() == 0);
}

#[test]
fn queries_are_limited_and_their_handles_differ() {
    let mut queries = Queries::default();
    // The worst possible generator.
    let mut random = || 0;
    for _ in 0..1000 {
        assert!(queries.add(query(0), &mut random).is_some());
    }
    assert_eq!(queries.len(), 1000);
    let mut random = counting();
    for _ in 1000..MAX_QUERIES {
        queries.add(query(0), &mut random);
    }
    assert!(queries.add(query(0), &mut random).is_none());
    assert_eq!(queries.len(), MAX_QUERIES);
}

#[test]
fn a_link_local_peer_has_the_scope_of_the_local_address() {
    assert_eq!(from_to("[fe80::1%7]:1", "[fe80::2]:3", 0).to(), address("[fe80::2%7]:3935"));
    assert_eq!(from_to("[fd00::1]:1", "[fd00::2]:3", 0).to(), address("[fd00::2]:3935"));
}

fn peer_request(handle: u64) -> Message {
    Message { handle, ..query(0).message }
}

#[test]
fn each_request_is_reported_once() {
    let (mut requests, from) = (PeerRequests::default(), address("10.0.0.9:5"));
    assert_eq!(requests.record(from, &peer_request(1), 0), Recorded::New);
    assert_eq!(requests.record(from, &peer_request(1), PEER_REQUEST_LIFETIME_MS - 1), Recorded::Known);
    // A host cannot suppress the report of another host's request.
    assert_eq!(requests.record(address("10.0.0.8:5"), &peer_request(1), 1), Recorded::New);
    assert_eq!(requests.record(from, &peer_request(1), PEER_REQUEST_LIFETIME_MS), Recorded::New);
    assert_eq!(requests.deadline(), Some(PEER_REQUEST_LIFETIME_MS + 1));
    requests.forget(3 * PEER_REQUEST_LIFETIME_MS);
    assert!(requests.len() == 0 && requests.by_host.is_empty() && requests.deadline().is_none());
}

/// The kernel may keep each report forever, so the rate of reports matters.
#[test]
fn reports_to_the_kernel_are_limited() {
    const HOUR: u64 = 3_600_000;
    let from = |host: u32| SocketAddr::new(IpAddr::V4((0x0b00_0000 + host).into()), 5);
    let reported = |senders: u32| {
        let mut requests = PeerRequests::default();
        let ask = |handle: u64| requests.record(from(handle as u32 % senders), &peer_request(handle), handle * 10);
        (0..HOUR / 10).map(ask).filter(|&asking| asking == Recorded::New).count()
    };
    let rounds = (HOUR / PEER_REQUEST_LIFETIME_MS) as usize;
    assert_eq!(reported(1), rounds * MAX_PEER_REQUESTS_PER_HOST as usize);
    assert_eq!(reported(10_000), rounds * MAX_PEER_REQUESTS);
}

#[test]
fn remembered_requests_are_limited() {
    let mut requests = PeerRequests::default();
    let limit = u64::from(MAX_PEER_REQUESTS_PER_HOST);
    for handle in 0..2 * limit {
        let expected = if handle < limit { Recorded::New } else { Recorded::TooMany };
        assert_eq!(requests.record(address("10.0.0.9:5"), &peer_request(handle), 0), expected);
    }
    assert_eq!(requests.record(address("10.0.0.8:5"), &peer_request(0), 0), Recorded::New, "another host");
    for host in 0..MAX_PEER_REQUESTS as u32 * 2 {
        requests.record(SocketAddr::new(IpAddr::V4((0x0b00_0000 + host).into()), 5), &peer_request(1), 0);
    }
    assert_eq!(requests.len(), MAX_PEER_REQUESTS);
    assert_eq!(
        requests.record(address("10.0.0.9:5"), &peer_request(0), 0),
        Recorded::Known,
        "known requests do not count"
    );
    assert_eq!(requests.record(address("10.0.0.9:5"), &peer_request(1), PEER_REQUEST_LIFETIME_MS), Recorded::New);
    assert_eq!(requests.len(), 1);
}

#[test]
fn an_ipv6_network_is_one_host() {
    let reported = |network: &str| {
        let mut requests = PeerRequests::default();
        let from = |number: u64| address(&format!("[{network}::{number:x}]:5"));
        let ask = |number| requests.record(from(number), &peer_request(number), 0);
        let reported =
            (0..2 * u64::from(MAX_PEER_REQUESTS_PER_HOST)).map(ask).filter(|&asking| asking == Recorded::New).count();
        requests.forget(PEER_REQUEST_LIFETIME_MS);
        assert!(requests.len() == 0 && requests.by_host.is_empty());
        reported
    };
    assert_eq!(reported("fd00:1"), MAX_PEER_REQUESTS_PER_HOST as usize);
    assert_eq!(
        reported("fe80"),
        2 * MAX_PEER_REQUESTS_PER_HOST as usize,
        "link-local addresses are hosts of their own"
    );
}
