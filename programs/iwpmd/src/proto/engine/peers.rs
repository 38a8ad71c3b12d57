//! Messages from other hosts: requests, and answers to queries.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use super::{Action, Engine, Level, Socket};
use crate::proto::mappings::key;
use crate::proto::netlink::{ErrorCode, Value};
use crate::proto::requests::{Due, Query, Recorded};
use crate::proto::uapi::{RDMA_NL_IWPM_QUERY_MAPPING, RDMA_NL_IWPM_REMOTE_INFO};
use crate::proto::wire::{Kind, Message, Peer};

impl Engine {
    /// Handles a datagram received by one of the UDP sockets. `to` is the local address that it was
    /// sent to.
    pub fn udp(&mut self, socket: Socket, from: SocketAddr, to: Option<IpAddr>, bytes: &[u8], now: u64) {
        let known = match (Message::parse(bytes, from.is_ipv6()), socket) {
            (Ok(message), Socket::Service) if message.kind == Kind::Request => {
                self.answer_request(&message, from, to, now)
            }
            // A repeated request is answered again, so nothing waits for an acknowledgement.
            (Ok(message), Socket::Service) => message.kind == Kind::Ack,
            (Ok(message), Socket::Client) if message.kind == Kind::Accept => self.accepted(&message, from),
            (Ok(message), Socket::Client) if message.kind == Kind::Reject => self.rejected(&message, from),
            _ => false,
        };
        if !known {
            self.counts.dropped += 1;
        }
    }

    fn answer_request(&mut self, request: &Message, from: SocketAddr, to: Option<IpAddr>, now: u64) -> bool {
        let Some(mapped_cp) = request.mapped_cp else { return false };
        let answer = match self.mappings.for_peer(request.ap) {
            None => {
                self.counts.rejected += 1;
                request.answer(Kind::Reject)
            }
            Some(mapping) => {
                let answer = Message { ap: mapping.answer(request.ap), ..request.answer(Kind::Accept) };
                let (owner, local, mapped) = (mapping.owner, mapping.local, mapping.mapped);
                self.counts.accepted += 1;
                match self.peer_requests.record(from, request, now) {
                    Recorded::New => self.report_peer((owner, local, mapped), request.cp, mapped_cp, from),
                    Recorded::Known => {}
                    Recorded::TooMany => self.counts.not_reported += 1,
                }
                answer
            }
        };
        self.send(Socket::Service, to, from, &answer);
        true
    }

    /// Reports to the kernel which peer is about to connect to a mapping. The kernel needs the
    /// report before the peer connects.
    fn report_peer(
        &mut self,
        (owner, local, mapped): (u8, SocketAddr, SocketAddr),
        cp: Peer,
        mapped_cp: Peer,
        from: SocketAddr,
    ) {
        let values = [
            Value::U32(0),
            Value::Address(local),
            Value::Address(address(cp, from)),
            Value::Address(mapped),
            Value::Address(address(mapped_cp, from)),
            Value::U16(0),
        ];
        self.send_to_kernel(owner, RDMA_NL_IWPM_REMOTE_INFO, &values);
    }

    /// Queries another host on behalf of the kernel.
    pub(super) fn ask(&mut self, query: Query) {
        let to = query.to();
        match self.queries.add(query.clone(), &mut self.random) {
            Some(message) => self.send(Socket::Client, None, to, &message),
            None => {
                self.release(&query);
                self.error(query.header, ErrorCode::CreateMapping);
            }
        }
    }

    fn accepted(&mut self, accept: &Message, from: SocketAddr) -> bool {
        let Some(query) = self.queries.answered_by(from, accept) else { return false };
        if !query.answered {
            query.answered = true;
            let query = query.clone();
            self.answer_query(&query, address(accept.ap, query.remote), 0);
        }
        self.send(Socket::Client, None, from, &accept.answer(Kind::Ack));
        true
    }

    fn rejected(&mut self, reject: &Message, from: SocketAddr) -> bool {
        let Some(query) = self.queries.answered_by(from, reject) else { return false };
        if !query.answered {
            query.answered = true;
            let query = query.clone();
            self.answer_query(&query, query.remote, ErrorCode::QueryRejected as u16);
        }
        true
    }

    fn answer_query(&mut self, query: &Query, mapped_remote: SocketAddr, code: u16) {
        self.counts.answered += 1;
        let values = [
            Value::U32(query.header.seq),
            Value::Address(query.local),
            Value::Address(query.remote),
            Value::Address(query.mapped),
            Value::Address(mapped_remote),
            Value::U16(code),
        ];
        self.send_to_kernel(query.header.client, RDMA_NL_IWPM_QUERY_MAPPING, &values);
    }

    /// Resends queries, and reports those that timed out.
    pub(super) fn repeat_queries(&mut self, now: u64) {
        while let Some(due) = self.queries.due(now) {
            match due {
                Due::Resend(to, message) => self.send(Socket::Client, None, to, &message),
                Due::TimedOut(query) => {
                    self.counts.unanswered += 1;
                    let (local, remote) = (query.local, key(&query.remote));
                    self.log(
                        Level::Info,
                        format!("no port mapper answers for {}, port {}, to {local}", remote.ip, remote.port),
                    );
                    self.release(&query);
                    self.error(query.header, ErrorCode::UnknownMapping);
                }
            }
        }
    }

    fn send(&mut self, socket: Socket, from: Option<IpAddr>, to: SocketAddr, message: &Message) {
        self.actions.push_back(Action::Send { socket, from, to, message: message.emit() });
    }
}

/// Returns a peer's address for the kernel, with the scope of `like` if it is link-local.
fn address(peer: Peer, like: SocketAddr) -> SocketAddr {
    match (peer.ip, like) {
        (IpAddr::V6(ip), SocketAddr::V6(like)) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, peer.port, 0, like.scope_id()).into()
        }
        _ => SocketAddr::new(peer.ip, peer.port),
    }
}
