//! Headers of datagram rsockets: none extends beyond its packet, and accepted headers round-trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rdmacm_core::rsocket::wire::datagram::{UdHeader, UdpHeader};

fuzz_target!(|packet: &[u8]| {
    if let Some((header, len)) = UdpHeader::parse(packet) {
        assert!(len <= packet.len());
        let (bytes, emitted) = header.emit();
        assert_eq!(UdpHeader::parse(&bytes[..emitted]), Some((header, len)));
    }
    if let Some((header, len)) = UdHeader::parse(packet) {
        assert!(len <= packet.len());
        let (bytes, emitted) = header.emit();
        assert_eq!(bytes[..emitted], packet[..len]);
    }
});
