//! A connection between two ids of the connection manager, with one message.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, zeroed};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use libc::{size_t, sockaddr};
use nix::sys::socket::{SockaddrLike, SockaddrStorage};

use crate::library::{Library, functions};
use crate::loopback::{done, non_null};

const RDMA_PS_TCP: c_int = 0x0106;
const IBV_QPT_RC: u32 = 2;
const IBV_WR_SEND: u32 = 2;
const IBV_SEND_SIGNALED: u32 = 2;
const IBV_ACCESS_LOCAL_WRITE: c_int = 1;
/// Time-out in milliseconds for resolving the address, and for resolving the route.
const RESOLVE_TIMEOUT_MS: c_int = 2000;
const POLL_INTERVAL: Duration = Duration::from_millis(1);
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

/// The beginning of `struct rdma_cm_id`, up to the last field that is used here.
#[repr(C)]
struct Id {
    verbs: *mut Context,
    unused: [u64; 2],
    qp: *mut c_void,
    route: [u64; 42],
    send_cq: *mut c_void,
    recv_cq_channel: *mut c_void,
    recv_cq: *mut c_void,
    srq: *mut c_void,
    pd: *mut c_void,
}

/// The beginning of `struct ibv_context`, and of its field `ops` (infiniband/verbs.h).
#[repr(C)]
struct Context {
    device: *mut c_void,
    before: [*mut c_void; 11],
    poll_cq: Option<Poll>,
    between: [*mut c_void; 13],
    post_send: Option<Post>,
    post_recv: Option<Post>,
}

type Post = unsafe extern "C" fn(*mut c_void, *mut WorkRequest, *mut *mut WorkRequest) -> c_int;
type Poll = unsafe extern "C" fn(*mut c_void, c_int, *mut Completion) -> c_int;

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

/// `struct ibv_send_wr`. `struct ibv_recv_wr` has the same first fields.
#[repr(C)]
struct WorkRequest {
    wr_id: u64,
    next: *mut WorkRequest,
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
    assert!(size_of::<WorkRequest>() == 128 && size_of::<Completion>() == 48 && size_of::<QpInit>() == 64);
    assert!(offset_of!(Context, poll_cq) == 96 && offset_of!(Context, post_send) == 208);
    assert!(offset_of!(Mr, lkey) == 36);
};

/// An id with its QP and a registered buffer.
struct Endpoint {
    id: *mut Id,
    buffer: Box<[u8; MESSAGE.len()]>,
    lkey: u32,
}

/// Connects to `address`, sends a message, and disconnects.
pub fn connect(library: Library, address: IpAddr) -> Result<(), String> {
    let verbs = Library::open(Path::new("libibverbs.so.1"))?;
    // SAFETY: the functions have the types that rdma/rdma_cma.h and infiniband/verbs.h declare.
    let (calls, verbs) = unsafe { (Calls::load(library)?, Verbs::load(verbs)?) };
    // SAFETY: the ids were created here and are not destroyed; `name` is a valid socket address.
    unsafe {
        let listener = new_id(calls)?;
        let name = SockaddrStorage::from(SocketAddr::new(address, 0));
        done("rdma_bind_addr", (calls.rdma_bind_addr)(listener, name.as_ptr()))?;
        done("rdma_listen", (calls.rdma_listen)(listener, 1))?;
        let port = u16::from_be((calls.rdma_get_src_port)(listener));
        let (listener, (arrived, wait)) = (AtomicPtr::new(listener), mpsc::channel());
        let server = thread::spawn(move || serve(calls, verbs, listener.into_inner(), arrived));
        let client = send_message(calls, verbs, address, port)?;
        // On iWARP a completed send only means that TCP holds the data, which disconnecting may
        // discard: wait until the server has the message. `recv` fails if the server fails.
        let _ = wait.recv();
        // Each rdma_disconnect() waits until the other side has disconnected. The second of the two
        // calls may fail, because the connection has ended already.
        (calls.rdma_disconnect)(client.id);
        server.join().map_err(|_| "the other side crashed")?
    }
}

/// Creates a synchronous id.
///
/// # Safety
/// `calls` holds the functions of librdmacm.
unsafe fn new_id(calls: Calls) -> Result<*mut Id, String> {
    let mut id = ptr::null_mut();
    // SAFETY: `id` is writable.
    unsafe {
        let result = (calls.rdma_create_id)(ptr::null_mut(), &raw mut id, ptr::null_mut(), RDMA_PS_TCP);
        done("rdma_create_id", result)?;
    }
    Ok(id)
}

/// Connects to the listener and sends the message.
///
/// # Safety
/// `calls` and `verbs` hold the functions of librdmacm and libibverbs.
unsafe fn send_message(calls: Calls, verbs: Verbs, address: IpAddr, port: u16) -> Result<Endpoint, String> {
    let name = SockaddrStorage::from(SocketAddr::new(address, port));
    // SAFETY: the id was created here; `dst` is a valid socket address while `name` lives.
    unsafe {
        let id = new_id(calls)?;
        let dst = name.as_ptr();
        done("rdma_resolve_addr", (calls.rdma_resolve_addr)(id, ptr::null(), dst, RESOLVE_TIMEOUT_MS))?;
        done("rdma_resolve_route", (calls.rdma_resolve_route)(id, RESOLVE_TIMEOUT_MS))?;
        let mut endpoint = create_endpoint(calls, verbs, id)?;
        done("rdma_connect", (calls.rdma_connect)(id, ptr::null_mut()))?;
        *endpoint.buffer = MESSAGE;
        endpoint.post((*(*id).verbs).post_send, "ibv_post_send")?;
        endpoint.wait_for_completion((*id).send_cq)?;
        Ok(endpoint)
    }
}

/// Accepts a connection and receives the message. Sends to `arrived` before it disconnects.
///
/// # Safety
/// `calls` and `verbs` hold the functions of both libraries; `listener` is a listening id.
unsafe fn serve(calls: Calls, verbs: Verbs, listener: *mut Id, arrived: Sender<()>) -> Result<(), String> {
    let mut id = ptr::null_mut();
    // SAFETY: `id` is writable, and rdma_get_request() sets it to the id of the request.
    unsafe {
        done("rdma_get_request", (calls.rdma_get_request)(listener, &raw mut id))?;
        let mut endpoint = create_endpoint(calls, verbs, id)?;
        endpoint.post((*(*id).verbs).post_recv, "ibv_post_recv")?;
        done("rdma_accept", (calls.rdma_accept)(id, ptr::null_mut()))?;
        endpoint.wait_for_completion((*id).recv_cq)?;
        if *endpoint.buffer != MESSAGE {
            return Err("the received data is not the data that was sent".to_owned());
        }
        // Nobody waits any more if sending fails.
        let _ = arrived.send(());
        (calls.rdma_disconnect)(id);
    }
    Ok(())
}

/// Creates the QP of an id, and registers a buffer.
///
/// # Safety
/// `id` is live and has a device.
unsafe fn create_endpoint(calls: Calls, verbs: Verbs, id: *mut Id) -> Result<Endpoint, String> {
    // SAFETY: all zeros are a valid QpInit; the id is live and has a device: guaranteed by the
    // caller.
    unsafe {
        let mut init: QpInit = zeroed();
        (init.max_send_wr, init.max_recv_wr, init.max_send_sge, init.max_recv_sge) = (2, 2, 1, 1);
        init.qp_type = IBV_QPT_RC;
        done("rdma_create_qp", (calls.rdma_create_qp)(id, ptr::null_mut(), &raw mut init))?;
        let mut buffer = Box::new([0; MESSAGE.len()]);
        let start = buffer.as_mut_ptr().cast();
        let mr = non_null("ibv_reg_mr", (verbs.ibv_reg_mr)((*id).pd, start, MESSAGE.len(), IBV_ACCESS_LOCAL_WRITE))?;
        Ok(Endpoint { id, buffer, lkey: (*mr).lkey })
    }
}

impl Endpoint {
    /// Posts a send or receive of the buffer with `post`, the device's function `name`.
    ///
    /// # Safety
    /// `post` is a function of the id's device; the id has a QP; the buffer lives until the work
    /// request completes.
    unsafe fn post(&mut self, post: Option<Post>, name: &str) -> Result<(), String> {
        let post = post.ok_or("the device cannot post work requests")?;
        let mut sge = Sge { addr: self.buffer.as_mut_ptr() as u64, length: MESSAGE.len() as u32, lkey: self.lkey };
        // SAFETY: all zeros are a valid work request, of which a receive uses only the first
        // fields. The id has a QP, for which `post` is a function: guaranteed by the caller.
        let error = unsafe {
            let mut request: WorkRequest = zeroed();
            (request.sg_list, request.num_sge) = (&raw mut sge, 1);
            (request.opcode, request.send_flags) = (IBV_WR_SEND, IBV_SEND_SIGNALED);
            post((*self.id).qp, &raw mut request, &mut ptr::null_mut())
        };
        if error == 0 { Ok(()) } else { Err(format!("{name} failed: {}", std::io::Error::from_raw_os_error(error))) }
    }

    /// Waits until a work request completes. Fails if the request has failed. There is no time-out:
    /// the parent process kills this process if it takes too long.
    ///
    /// # Safety
    /// `cq` is a CQ of the id.
    unsafe fn wait_for_completion(&self, cq: *mut c_void) -> Result<(), String> {
        // SAFETY: `cq` is a CQ of the id (guaranteed by the caller); all zeros are a valid
        // completion.
        unsafe {
            let poll = (*(*self.id).verbs).poll_cq.ok_or("the device cannot poll CQs")?;
            let mut completion: Completion = zeroed();
            loop {
                match poll(cq, 1, &raw mut completion) {
                    0 => thread::sleep(POLL_INTERVAL),
                    1 if completion.status == 0 => return Ok(()),
                    1 => return Err(format!("the message failed with work completion status {}", completion.status)),
                    _ => return Err("ibv_poll_cq failed".to_owned()),
                }
            }
        }
    }
}
