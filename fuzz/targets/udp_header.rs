//! Headers of datagram rsockets: none reaches beyond its packet, and what is accepted says the same when sent again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rdmacm_core::rsocket::wire::datagram::{UdHeader, UdpHeader};

fuzz_target!(|packet: &[u8]| {
    if let Ok((header, len)) = UdpHeader::parse(packet) {
        assert!(len <= packet.len());
        let (bytes, emitted) = header.emit();
        assert_eq!(UdpHeader::parse(&bytes[..emitted]), Ok((header, len)));
    }
    if let Ok((header, len)) = UdHeader::parse(packet) {
        assert!(len <= packet.len());
        let (bytes, emitted) = header.emit();
        assert_eq!(bytes[..emitted], packet[..len]);
    }
});
