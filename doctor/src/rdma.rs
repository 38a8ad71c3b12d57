//! One connection of the connection manager, one message.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, zeroed};
use std::net::IpAddr;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::thread;
use std::time::Duration;

use libc::{size_t, sockaddr};

use crate::library::Library;
use crate::loopback::{done, functions, made};
use crate::netdev::socket_address;

const RDMA_PS_TCP: c_int = 0x0106;
const IBV_QPT_RC: u32 = 2;
const IBV_WR_SEND: u32 = 2;
const IBV_SEND_SIGNALED: u32 = 2;
const IBV_ACCESS_LOCAL_WRITE: c_int = 1;
/// Milliseconds for each step of resolving.
const RESOLVE: c_int = 2000;
const PAUSE: Duration = Duration::from_millis(1);
const MESSAGE: [u8; 16] = *b"rdmacm-doctor 2\n";

functions!(Calls {
    rdma_create_id(*mut c_void, *mut *mut Id, *mut c_void, c_int) -> c_int;
    rdma_bind_addr(*mut Id, *const sockaddr) -> c_int;
    rdma_listen(*mut Id, c_int) -> c_int;
    rdma_get_src_port(*mut Id) -> u16;
    rdma_get_request(*mut Id, *mut *mut Id) -> c_int;
    rdma_resolve_addr(*mut Id, *const sockaddr, *const sockaddr, c_int) -> c_int;
    rdma_resolve_route(*mut Id, c_int) -> c_int;
    rdma_create_qp(*mut Id, *mut c_void, *mut QpInit) -> c_int;
    rdma_connect(*mut Id, *mut c_void) -> c_int;
    rdma_accept(*mut Id, *mut c_void) -> c_int;
    rdma_disconnect(*mut Id) -> c_int;
});

functions!(Verbs {
    ibv_reg_mr(*mut c_void, *mut c_void, size_t, c_int) -> *mut Mr;
});

/// `struct rdma_cm_id`, as far as it is used here.
#[repr(C)]
struct Id {
    verbs: *mut Context,
    between: [u64; 2],
    qp: *mut c_void,
    route: [u64; 42],
    send_cq: *mut c_void,
    recv_cq_channel: *mut c_void,
    recv_cq: *mut c_void,
    srq: *mut c_void,
    pd: *mut c_void,
}

/// `struct ibv_context` with its operations by number (infiniband/verbs.h).
#[repr(C)]
struct Context {
    device: *mut c_void,
    operations: [*mut c_void; 32],
}

const POLL_CQ: usize = 11;
const POST_SEND: usize = 25;
const POST_RECV: usize = 26;

/// `struct ibv_mr`.
#[repr(C)]
struct Mr {
    before: [u64; 4],
    handle: u32,
    lkey: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
struct QpInit {
    pointers: [*mut c_void; 4],
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
    qp_type: u32,
    sq_sig_all: c_int,
}

/// `struct ibv_sge`.
#[repr(C)]
struct Sge {
    addr: u64,
    length: u32,
    lkey: u32,
}

/// `struct ibv_send_wr`; its beginning is that of `struct ibv_recv_wr`.
#[repr(C)]
struct Work {
    wr_id: u64,
    next: *mut Work,
    sg_list: *mut Sge,
    num_sge: c_int,
    opcode: u32,
    send_flags: u32,
    rest: [u32; 23],
}

/// `struct ibv_wc`.
#[repr(C)]
struct Completion {
    wr_id: u64,
    status: u32,
    rest: [u32; 9],
}

const _: () = {
    assert!(offset_of!(Id, qp) == 24 && offset_of!(Id, send_cq) == 368 && offset_of!(Id, pd) == 400);
    assert!(size_of::<Work>() == 128 && size_of::<Completion>() == 48 && size_of::<QpInit>() == 64);
    assert!(offset_of!(Mr, lkey) == 36);
};

type Post = unsafe extern "C" fn(*mut c_void, *mut Work, *mut *mut Work) -> c_int;
type Poll = unsafe extern "C" fn(*mut c_void, c_int, *mut Completion) -> c_int;

/// An id with its QP and a registered buffer.
struct End {
    id: *mut Id,
    buffer: Box<[u8; MESSAGE.len()]>,
    lkey: u32,
}

// SAFETY: ids are for any thread.
unsafe impl Send for End {}

pub fn connect(library: Library, address: IpAddr) -> Result<(), String> {
    let verbs = Library::open(Path::new("libibverbs.so.1"))?;
    // SAFETY: the types of rdma/rdma_cma.h and infiniband/verbs.h.
    let (calls, verbs) = unsafe { (Calls::load(library)?, Verbs::load(verbs)?) };
    // SAFETY: ids that were just made, whole addresses.
    unsafe {
        let listener = new_id(calls)?;
        let (name, _) = socket_address(address, 0);
        done("rdma_bind_addr", (calls.rdma_bind_addr)(listener, (&raw const name).cast()))?;
        done("rdma_listen", (calls.rdma_listen)(listener, 1))?;
        let port = u16::from_be((calls.rdma_get_src_port)(listener));
        let listener = End { id: listener, buffer: Box::new([0; MESSAGE.len()]), lkey: 0 };
        let server = thread::spawn(move || serve(calls, verbs, listener));
        let client = ask(calls, verbs, address, port)?;
        // Each side waits for the other's; who comes second may find that there is nothing left to end.
        (calls.rdma_disconnect)(client.id);
        server.join().map_err(|_| "the other side crashed")?
    }
}

/// A synchronous one.
///
/// # Safety
/// The functions are what they are called.
unsafe fn new_id(calls: Calls) -> Result<*mut Id, String> {
    let mut id = ptr::null_mut();
    // SAFETY: `id` is writable.
    unsafe {
        let made = (calls.rdma_create_id)(ptr::null_mut(), &raw mut id, ptr::null_mut(), RDMA_PS_TCP);
        done("rdma_create_id", made)?;
    }
    Ok(id)
}

/// # Safety
/// The functions are what they are called.
unsafe fn ask(calls: Calls, verbs: Verbs, address: IpAddr, port: u16) -> Result<End, String> {
    let (name, _) = socket_address(address, port);
    // SAFETY: an id that was just made, a whole address.
    unsafe {
        let id = new_id(calls)?;
        let to = (&raw const name).cast();
        done("rdma_resolve_addr", (calls.rdma_resolve_addr)(id, ptr::null(), to, RESOLVE))?;
        done("rdma_resolve_route", (calls.rdma_resolve_route)(id, RESOLVE))?;
        let mut end = prepare(calls, verbs, id)?;
        done("rdma_connect", (calls.rdma_connect)(id, ptr::null_mut()))?;
        *end.buffer = MESSAGE;
        end.post(POST_SEND, "ibv_post_send")?;
        end.complete((*id).send_cq)?;
        Ok(end)
    }
}

/// # Safety
/// A listening id.
unsafe fn serve(calls: Calls, verbs: Verbs, listener: End) -> Result<(), String> {
    let mut id = ptr::null_mut();
    // SAFETY: `id` is writable, and then a connection request's.
    unsafe {
        done("rdma_get_request", (calls.rdma_get_request)(listener.id, &raw mut id))?;
        let mut end = prepare(calls, verbs, id)?;
        end.post(POST_RECV, "ibv_post_recv")?;
        done("rdma_accept", (calls.rdma_accept)(id, ptr::null_mut()))?;
        end.complete((*id).recv_cq)?;
        if *end.buffer != MESSAGE {
            return Err("what arrived is not what was sent".to_owned());
        }
        (calls.rdma_disconnect)(id);
    }
    Ok(())
}

/// # Safety
/// An id whose device is known.
unsafe fn prepare(calls: Calls, verbs: Verbs, id: *mut Id) -> Result<End, String> {
    // SAFETY: all zeros are a value of it; the caller's word.
    unsafe {
        let mut init: QpInit = zeroed();
        (init.max_send_wr, init.max_recv_wr, init.max_send_sge, init.max_recv_sge) = (2, 2, 1, 1);
        init.qp_type = IBV_QPT_RC;
        done("rdma_create_qp", (calls.rdma_create_qp)(id, ptr::null_mut(), &raw mut init))?;
        let mut buffer = Box::new([0; MESSAGE.len()]);
        let start = buffer.as_mut_ptr().cast();
        let mr = made("ibv_reg_mr", (verbs.ibv_reg_mr)((*id).pd, start, MESSAGE.len(), IBV_ACCESS_LOCAL_WRITE))?;
        Ok(End { id, buffer, lkey: (*mr).lkey })
    }
}

impl End {
    /// Posts the buffer, to be sent or filled.
    ///
    /// # Safety
    /// The id has a QP; the buffer lives until the work is complete.
    unsafe fn post(&mut self, operation: usize, name: &str) -> Result<(), String> {
        let mut sge = Sge { addr: self.buffer.as_mut_ptr() as u64, length: MESSAGE.len() as u32, lkey: self.lkey };
        // SAFETY: all zeros are a value of it; for receives only the beginning is looked at. The device's own function.
        let error = unsafe {
            let mut work: Work = zeroed();
            (work.sg_list, work.num_sge) = (&raw mut sge, 1);
            if operation == POST_SEND {
                (work.opcode, work.send_flags) = (IBV_WR_SEND, IBV_SEND_SIGNALED);
            }
            let mut bad = ptr::null_mut();
            let post = NonNull::new((*(*self.id).verbs).operations[operation]).ok_or("the device cannot post work")?;
            std::mem::transmute::<NonNull<c_void>, Post>(post)((*self.id).qp, &raw mut work, &raw mut bad)
        };
        if error == 0 { Ok(()) } else { Err(format!("{name} failed: {}", std::io::Error::from_raw_os_error(error))) }
    }

    /// Waits until the work is complete; whoever started this process does not wait for ever.
    ///
    /// # Safety
    /// A CQ of the id's.
    unsafe fn complete(&self, cq: *mut c_void) -> Result<(), String> {
        // SAFETY: the device's own function; all zeros are a value of a completion.
        unsafe {
            let poll =
                NonNull::new((*(*self.id).verbs).operations[POLL_CQ]).ok_or("the device cannot complete work")?;
            let poll = std::mem::transmute::<NonNull<c_void>, Poll>(poll);
            let mut completion: Completion = zeroed();
            loop {
                match poll(cq, 1, &raw mut completion) {
                    0 => thread::sleep(PAUSE),
                    1 if completion.status == 0 => return Ok(()),
                    1 => return Err(format!("the message failed with work completion status {}", completion.status)),
                    _ => return Err("ibv_poll_cq failed".to_owned()),
                }
            }
        }
    }
}
