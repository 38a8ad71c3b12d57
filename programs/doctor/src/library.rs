//! Checks librdmacm and libibverbs: which file the loader selects, and whether it has the functions
//! that programs call.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::mem::zeroed;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use crate::codes::{Check, Problem, Warning};
use crate::devices::{self, Port};
use crate::report::Report;

/// A function of each symbol version that programs may need.
const VERSIONS: [(&CStr, &CStr); 4] = [
    (c"rdma_create_id", c"RDMACM_1.0"),
    (c"rdma_join_multicast_ex", c"RDMACM_1.1"),
    (c"rdma_establish", c"RDMACM_1.2"),
    (c"rdma_set_local_ece", c"RDMACM_1.3"),
];
/// The newest symbol of libibverbs that this project's library needs, and its version (rdma-core
/// 32).
const NEWEST_VERBS_SYMBOL: (&CStr, &CStr) = (c"_ibv_query_gid_ex", c"IBVERBS_1.11");
/// Text that only this project's library contains.
const MARKER: &[u8] = b"RDMACM_LOG";

/// A library that stays loaded.
#[derive(Clone, Copy)]
pub struct Library(NonNull<c_void>);

impl Library {
    /// Opens a library by its name, as the loader does, or by its path. Fails with the loader's
    /// message.
    pub fn open(name: &Path) -> Result<Library, String> {
        let name = CString::new(name.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        // SAFETY: `name` is a C string; the constructors of these libraries have no preconditions.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Library).ok_or_else(|| {
            // SAFETY: dlerror(3) returns NULL or a C string, which is valid until the next call.
            let message = unsafe { libc::dlerror().as_ref().map(|first| CStr::from_ptr(first)) };
            message.map_or("unknown".to_owned(), |message| message.to_string_lossy().into_owned())
        })
    }

    /// Returns the address of a function; `None` if the library does not have the function.
    pub fn symbol(self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is that of a loaded library, and `name` is a C string.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }

    fn has_version(self, name: &CStr, version: &CStr) -> bool {
        // SAFETY: the handle is that of a loaded library, and the names are C strings.
        !unsafe { libc::dlvsym(self.0.as_ptr(), name.as_ptr(), version.as_ptr()) }.is_null()
    }

    /// Returns the file that defines a function of the library.
    fn file(self, function: &CStr) -> Option<PathBuf> {
        let address = self.symbol(function)?;
        // SAFETY: all zeros are a valid Dl_info; the file name is valid while the library is
        // loaded.
        unsafe {
            let mut info: libc::Dl_info = zeroed();
            let found: c_int = libc::dladdr(address.as_ptr(), &raw mut info);
            let name = (found != 0 && !info.dli_fname.is_null()).then(|| CStr::from_ptr(info.dli_fname))?;
            fs::canonicalize(Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()))).ok()
        }
    }
}

/// Defines a structure of functions that are looked up in a library by their names:
/// `functions!(Name { function(argument types) -> result; … })`.
macro_rules! functions {
    ($type:ident { $($name:ident($($argument:ty),*) -> $result:ty;)* }) => {
        #[derive(Clone, Copy)]
        struct $type {
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $type {
            /// Looks up the functions. Fails with the name of the first missing function.
            ///
            /// # Safety
            /// The library's functions have these types.
            unsafe fn load(library: $crate::library::Library) -> Result<$type, String> {
                Ok($type {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        let name = std::ffi::CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default();
                        let symbol = library.symbol(name).ok_or(concat!("there is no ", stringify!($name)))?;
                        // SAFETY: the function has this type: guaranteed by the caller.
                        unsafe {
                            std::mem::transmute::<std::ptr::NonNull<std::ffi::c_void>,
                                unsafe extern "C" fn($($argument),*) -> $result>(symbol)
                        }
                    },)*
                })
            }
        }
    };
}

pub(crate) use functions;

/// Checks both libraries; `path` replaces the librdmacm that programs load. Returns the file of
/// librdmacm, or `None` if it cannot be used.
pub fn check(path: Option<&Path>, ports: &[Port], report: &mut Report) -> Option<PathBuf> {
    check_verbs(ports, report);
    let name = path.unwrap_or(Path::new("librdmacm.so.1"));
    let library = match Library::open(name) {
        Ok(library) => library,
        Err(message) => {
            let advice =
                "install it (Debian: librdmacm1), or add its directory to the loader's (/etc/ld.so.conf.d, ldconfig)";
            report.problem(Problem::LibraryNotLoaded, format!("librdmacm.so.1 cannot be loaded: {message}"), advice);
            return None;
        }
    };
    let Some(file) = library.file(c"rdma_create_id") else {
        report.problem(
            Problem::LibraryNotLibrdmacm,
            format!("{} has no rdma_create_id", name.display()),
            "it is not librdmacm",
        );
        return None;
    };
    let has_marker = fs::read(&file).is_ok_and(|bytes| bytes.windows(MARKER.len()).any(|window| window == MARKER));
    let origin = if has_marker { "it supports RDMACM_LOG" } else { "rdma-core's, or another without RDMACM_LOG" };
    let what = if path.is_some() { "the library is" } else { "programs load" };
    report.ok(Check::Library, format!("{what} {}: {origin}", file.display()));
    for (function, version) in VERSIONS {
        if !library.has_version(function, version) {
            let (function, version) = (function.to_string_lossy(), version.to_string_lossy());
            let text = format!("it lacks {function}@{version}");
            report.warning(Warning::LibraryOld, text, "newer programs do not start with it: install a newer version");
        }
    }
    Some(file)
}

/// Checks libibverbs, and whether it finds the kernel's devices.
fn check_verbs(ports: &[Port], report: &mut Report) {
    let library = match Library::open(Path::new("libibverbs.so.1")) {
        Ok(library) => library,
        Err(message) => {
            let text = format!("libibverbs.so.1 cannot be loaded: {message}");
            return report.problem(
                Problem::LibraryNoLibibverbs,
                text,
                "install it (Debian: libibverbs1 and ibverbs-providers)",
            );
        }
    };
    if !library.has_version(NEWEST_VERBS_SYMBOL.0, NEWEST_VERBS_SYMBOL.1) {
        let file = library.file(c"ibv_get_device_list").unwrap_or_default();
        let text = format!("{} is older than 1.11 (rdma-core 32), which librdmacm 1.5 needs", file.display());
        report.problem(Problem::LibraryOldLibibverbs, text, "install a newer version (Debian: libibverbs1)");
    }
    let found = device_names(library);
    let not_found = |device: &&str| !found.iter().any(|name| name == device);
    let missing: Vec<&str> = devices::names(ports).into_iter().filter(not_found).collect();
    for device in &missing {
        if report.cause(device).is_some() {
            continue;
        }
        report.about(Some(device));
        report.problem(
            Problem::LibraryDeviceNotFound,
            format!("libibverbs does not find the device {device}"),
            "is its driver installed (Debian: ibverbs-providers)?",
        );
    }
    report.about(None);
    if !ports.is_empty() && missing.is_empty() {
        report.ok(Check::Library, format!("libibverbs finds {}", found.join(", ")));
    }
}

functions!(DeviceList {
    ibv_get_device_list(*mut c_int) -> *mut *mut c_void;
    ibv_free_device_list(*mut *mut c_void) -> ();
    ibv_get_device_name(*mut c_void) -> *const c_char;
});

/// Returns the names of the devices that libibverbs finds.
fn device_names(library: Library) -> Vec<String> {
    // SAFETY: the functions have the types that infiniband/verbs.h declares; the list has `count`
    // devices, and is freed after its last use.
    unsafe {
        let Ok(calls) = DeviceList::load(library) else { return Vec::new() };
        let mut count = 0;
        let list = (calls.ibv_get_device_list)(&raw mut count);
        if list.is_null() {
            return Vec::new();
        }
        let devices = std::slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0));
        let name = |device: &*mut c_void| CStr::from_ptr((calls.ibv_get_device_name)(*device));
        let found = devices.iter().map(|device| name(device).to_string_lossy().into_owned()).collect();
        (calls.ibv_free_device_list)(list);
        found
    }
}
