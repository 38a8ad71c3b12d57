//! The result of rdma_getaddrinfo(): a list of entries, allocated with malloc(3).

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use crate::errno::Result;
use crate::ffi::rdma_addrinfo;
use crate::os::alloc::{CBytes, zeroed};

/// An entry that is not in a list yet.
#[derive(Debug, Default)]
pub struct Entry {
    /// RAI_* flags.
    pub flags: c_int,
    /// Address family.
    pub family: c_int,
    /// QP type.
    pub qp_type: c_int,
    /// Port space.
    pub port_space: c_int,
    /// Local address.
    pub src: Option<CBytes>,
    /// Remote address.
    pub dst: Option<CBytes>,
    /// An array of `struct ibv_path_data`.
    pub route: Option<CBytes>,
    /// Header that precedes the private data of a connection request.
    pub connect: Option<CBytes>,
}

impl Entry {
    /// Converts the entry to a C structure whose `ai_next` is NULL.
    fn into_c(self) -> Result<NonNull<rdma_addrinfo>> {
        // SAFETY: all zeros are a value of this structure of numbers and pointers.
        let info = unsafe { zeroed::<rdma_addrinfo>()? };
        let (src, src_len) = CBytes::into_raw(self.src);
        let (dst, dst_len) = CBytes::into_raw(self.dst);
        let (route, route_len) = CBytes::into_raw(self.route);
        let (connect, connect_len) = CBytes::into_raw(self.connect);
        let entry = rdma_addrinfo {
            ai_flags: self.flags,
            ai_family: self.family,
            ai_qp_type: self.qp_type,
            ai_port_space: self.port_space,
            ai_src_len: src_len as u32,
            ai_dst_len: dst_len as u32,
            ai_src_addr: src.cast(),
            ai_dst_addr: dst.cast(),
            // getaddrinfo(3) is not asked for canonical names.
            ai_src_canonname: ptr::null_mut(),
            ai_dst_canonname: ptr::null_mut(),
            ai_route_len: route_len,
            ai_route: route,
            ai_connect_len: connect_len,
            ai_connect: connect,
            ai_next: ptr::null_mut(),
        };
        // SAFETY: `info` was allocated above with the size of the structure.
        unsafe { info.write(entry) };
        Ok(info)
    }
}

/// A list of entries, which are freed when the list is dropped.
#[derive(Debug)]
pub struct List(*mut rdma_addrinfo);

// SAFETY: the list is the only owner of its entries.
unsafe impl Send for List {}

impl List {
    /// Appends an entry.
    pub fn push(&mut self, entry: Entry) -> Result<()> {
        let mut end = &mut self.0;
        // SAFETY: the list owns its entries.
        while let Some(info) = unsafe { end.as_mut() } {
            end = &mut info.ai_next;
        }
        *end = entry.into_c()?.as_ptr();
        Ok(())
    }

    /// Returns whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_null()
    }

    /// Hands the list over to the program. Returns NULL if the list is empty.
    pub fn into_c(self) -> *mut rdma_addrinfo {
        std::mem::ManuallyDrop::new(self).0
    }

    /// Takes a list back from the program; NULL is an empty list. rdma_freeaddrinfo(3) drops the
    /// result.
    ///
    /// # Safety
    /// `first` is NULL or came from [`into_c`](Self::into_c), and is not used afterwards.
    pub unsafe fn from_c(first: *mut rdma_addrinfo) -> List {
        List(first)
    }
}

impl Default for List {
    fn default() -> List {
        List(ptr::null_mut())
    }
}

impl Drop for List {
    fn drop(&mut self) {
        let mut next = self.0;
        while let Some(info) = NonNull::new(next) {
            // SAFETY: the list owns its entries, and the pointers in them are from malloc(3) or
            // NULL.
            unsafe {
                let info = info.as_ref();
                next = info.ai_next;
                libc::free(info.ai_src_addr.cast());
                libc::free(info.ai_dst_addr.cast());
                libc::free(info.ai_src_canonname.cast());
                libc::free(info.ai_dst_canonname.cast());
                libc::free(info.ai_route);
                libc::free(info.ai_connect);
                libc::free(ptr::from_ref(info).cast_mut().cast());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(family: c_int) -> Entry {
        Entry {
            family,
            src: CBytes::copy(&[1; 16]).unwrap(),
            dst: CBytes::copy(&[2; 28]).unwrap(),
            route: CBytes::copy(&[3; 72]).unwrap(),
            connect: CBytes::copy(&[4; 36]).unwrap(),
            ..Entry::default()
        }
    }

    #[test]
    fn order_and_lengths() {
        let mut list = List::default();
        assert!(list.is_empty());
        for family in 1..=3 {
            list.push(entry(family)).unwrap();
        }
        let first = list.into_c();
        let (mut next, mut families) = (first, Vec::new());
        // SAFETY: the entries of the list.
        while let Some(info) = unsafe { next.as_ref() } {
            families.push(info.ai_family);
            assert_eq!((info.ai_src_len, info.ai_dst_len, info.ai_route_len, info.ai_connect_len), (16, 28, 72, 36));
            next = info.ai_next;
        }
        assert_eq!(families, [1, 2, 3]);
        // SAFETY: from `into_c`; nothing uses it any more.
        drop(unsafe { List::from_c(first) });
    }

    #[test]
    fn empty_parts_are_null() {
        let mut list = List::default();
        list.push(Entry::default()).unwrap();
        // SAFETY: the list has one entry.
        let info = unsafe { &*list.0 };
        assert!(info.ai_src_addr.is_null() && info.ai_route.is_null() && info.ai_src_canonname.is_null());
    }

    #[test]
    fn null_is_an_empty_list() {
        // SAFETY: NULL is allowed.
        assert!(unsafe { List::from_c(List::default().into_c()) }.is_empty());
    }
}
