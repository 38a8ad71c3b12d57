//! Names of events.

use std::ffi::CStr;

use crate::ffi::rdma_cm_event_type::*;

macro_rules! names {
    ($($event:ident)*) => {
        /// rdma_event_str(3): the enumerator's name; "UNKNOWN EVENT" for numbers that no program
        /// sees.
        pub fn event_str(event: u32) -> &'static CStr {
            $(
                if event == $event as u32 {
                    const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($event), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => c"",
                    };
                    return NAME;
                }
            )*
            c"UNKNOWN EVENT"
        }
    };
}

// USER and INTERNAL have no name in the reference either.
names! {
    RDMA_CM_EVENT_ADDR_RESOLVED RDMA_CM_EVENT_ADDR_ERROR RDMA_CM_EVENT_ROUTE_RESOLVED RDMA_CM_EVENT_ROUTE_ERROR
    RDMA_CM_EVENT_CONNECT_REQUEST RDMA_CM_EVENT_CONNECT_RESPONSE RDMA_CM_EVENT_CONNECT_ERROR
    RDMA_CM_EVENT_UNREACHABLE RDMA_CM_EVENT_REJECTED RDMA_CM_EVENT_ESTABLISHED RDMA_CM_EVENT_DISCONNECTED
    RDMA_CM_EVENT_DEVICE_REMOVAL RDMA_CM_EVENT_MULTICAST_JOIN RDMA_CM_EVENT_MULTICAST_ERROR RDMA_CM_EVENT_ADDR_CHANGE
    RDMA_CM_EVENT_TIMEWAIT_EXIT RDMA_CM_EVENT_ADDRINFO_RESOLVED RDMA_CM_EVENT_ADDRINFO_ERROR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_enumerators() {
        assert_eq!(event_str(0), c"RDMA_CM_EVENT_ADDR_RESOLVED");
        assert_eq!(event_str(17), c"RDMA_CM_EVENT_ADDRINFO_ERROR");
        for unknown in [18, 19, 20, u32::MAX] {
            assert_eq!(event_str(unknown), c"UNKNOWN EVENT");
        }
    }
}
