//! What the kernel offers a process: modules, their device files, and the limits of locked memory
//! and open descriptors.

use std::fs::File;
use std::io::{Error, ErrorKind};
use std::path::Path;

use libc::RLIM_INFINITY;
use nix::sys::resource::{Resource, getrlimit};

use crate::codes::{Check, Problem, Warning};
use crate::report::Report;
use crate::{devices, netdev};

const VERBS: &str = "/sys/class/infiniband_verbs";
const CONNECTION_MANAGER: &str = "/sys/class/misc/rdma_cm";

/// The name of a module, the path that exists if the module is loaded or built in, and what does
/// not work without it. Loading a module also loads the modules before it.
const MODULES: [(&str, &str, &str); 3] = [
    ("ib_core", devices::CLASS, "this machine has no RDMA device"),
    ("ib_uverbs", VERBS, "programs cannot use RDMA devices"),
    ("rdma_ucm", CONNECTION_MANAGER, "programs cannot use the connection manager"),
];

/// Checks the modules. Reports only the first missing module, because the modules after it depend
/// on it.
pub fn modules(report: &mut Report) {
    for (module, path, without) in MODULES {
        if !Path::new(path).exists() {
            let advice = if module == "ib_core" { devices::ADD.to_owned() } else { how_to_load("rdma_ucm") };
            let text = format!("{without}: the kernel's module {module} is not loaded");
            return report.problem(Problem::ModulesMissing, text, advice);
        }
        report.ok(Check::Modules, format!("the kernel has {module}"));
    }
}

/// Returns the advice for a module that is not loaded.
fn how_to_load(module: &str) -> String {
    let release = devices::read(netdev::RELEASE).unwrap_or_default();
    let directory = format!("/lib/modules/{release}");
    let Some(index) = devices::read(&format!("{directory}/modules.dep")) else {
        return format!("{directory} does not exist: in a container, load {module} on the host");
    };
    let names = [format!("/{module}.ko"), format!("/{}.ko", module.replace('_', "-"))];
    let mut files = index.lines().filter_map(|line| line.split(':').next());
    if files.any(|file| names.iter().any(|name| file.contains(name))) {
        format!("modprobe {module}; at every boot: echo {module} > /etc/modules-load.d/{module}.conf")
    } else {
        format!("this kernel ({release}) has no such module: install a kernel package with more drivers")
    }
}

/// The name of a device file, and the RDMA device that it belongs to; `None` for rdma_cm.
type Node = (String, Option<String>);

/// Checks that the device files exist and that this user can open them.
pub fn nodes(report: &mut Report) {
    let mut nodes: Vec<Node> = Vec::new();
    if Path::new(CONNECTION_MANAGER).exists() {
        nodes.push(("rdma_cm".to_owned(), None));
    }
    let of_devices = devices::entries(VERBS).into_iter().filter(|name| name.starts_with("uverbs"));
    nodes.extend(of_devices.map(|name| (name.clone(), devices::read(&format!("{VERBS}/{name}/ibdev")))));
    let devices = nodes.iter().filter(|(_, device)| device.is_some()).count();
    let mut broken: Vec<(Error, Vec<Node>)> = Vec::new();
    for node in nodes {
        let path = format!("/dev/infiniband/{}", node.0);
        let Err(error) = File::options().read(true).write(true).open(&path) else {
            report.ok(Check::DeviceFiles, format!("{path} can be opened"));
            continue;
        };
        match broken.iter_mut().find(|(other, _)| other.kind() == error.kind()) {
            Some((_, nodes)) => nodes.push(node),
            None => broken.push((error, vec![node])),
        }
    }
    for (error, nodes) in broken {
        // If rdma_cm or all uverbs files are broken, nothing works: report one finding about the
        // machine.
        let is_general = nodes[0].1.is_none() || nodes.len() == devices;
        for nodes in nodes.chunks(if is_general { nodes.len() } else { 1 }) {
            report.about(nodes[0].1.as_deref().filter(|_| !is_general));
            let names: Vec<&str> = nodes.iter().map(|(name, _)| name.as_str()).collect();
            report_broken(&error, &names.join(", "), report);
        }
    }
    report.about(None);
}

fn report_broken(error: &Error, names: &str, report: &mut Report) {
    match error.kind() {
        ErrorKind::NotFound => report.problem(
            Problem::DeviceFilesMissing,
            format!("/dev/infiniband has no {names}"),
            "is udev running? In a container, pass the devices to it (docker: --device=/dev/infiniband)",
        ),
        ErrorKind::PermissionDenied => report.problem(
            Problem::DeviceFilesPermission,
            format!("this user may not open /dev/infiniband/{names}"),
            "the mode is usually 0666: check the udev rules, or in a container the device cgroup",
        ),
        _ => report.problem(
            Problem::DeviceFilesError,
            format!("/dev/infiniband/{names} cannot be opened: {error}"),
            "see dmesg",
        ),
    }
}

/// More memory than one connection locks: the buffers of an rsocket at their full size, and the
/// queues, which adapters lock and software devices do not. An idle rsocket locks 12 kB.
const ONE_CONNECTION: u64 = 1 << 20;
/// Locked memory that is enough for several dozen connections.
const MANY_CONNECTIONS: u64 = 64 << 20;
const CAP_IPC_LOCK: u32 = 14;

/// Checks the limits of the process.
pub fn limits(report: &mut Report) {
    let kilobytes = |limit: u64| format!("{} kB", limit / 1024);
    let advice = if has_lock_capability() && !may_lock_all() {
        "CAP_IPC_LOCK does not count in a user namespace: raise the limit where the container is started (docker: --ulimit memlock=-1)"
    } else {
        "raise it: `* - memlock unlimited` in /etc/security/limits.d/rdma.conf, or LimitMEMLOCK=infinity for a service"
    };
    match soft_limit(Resource::RLIMIT_MEMLOCK) {
        None => report.ok(Check::Memlock, "memory may be locked without limit (ulimit -l)"),
        Some(_) if may_lock_all() => report.ok(Check::Memlock, "memory may be locked without limit (CAP_IPC_LOCK)"),
        Some(limit) if limit < ONE_CONNECTION => report.problem(
            Problem::MemlockTooLittle,
            format!(
                "{} of memory may be locked (ulimit -l): too little for the buffers and queues of one connection",
                kilobytes(limit)
            ),
            advice,
        ),
        Some(limit) if limit < MANY_CONNECTIONS => report.warning(
            Warning::MemlockLittle,
            format!("{} of memory may be locked (ulimit -l): enough for only a few connections", kilobytes(limit)),
            advice,
        ),
        Some(limit) => report.ok(Check::Memlock, format!("{} of memory may be locked (ulimit -l)", kilobytes(limit))),
    }
    descriptors(report, soft_limit(Resource::RLIMIT_NOFILE));
}

fn descriptors(report: &mut Report, limit: Option<u64>) {
    match limit {
        Some(limit) if limit < 256 => report.warning(
            Warning::DescriptorsFew,
            format!("{limit} descriptors may be open (ulimit -n); an rsocket takes two"),
            "raise it with ulimit -n, or LimitNOFILE= for a service",
        ),
        _ => report.ok(Check::Descriptors, "the limit is high enough (ulimit -n)"),
    }
}

/// Returns the soft limit, or `None` if there is no limit.
fn soft_limit(which: Resource) -> Option<u64> {
    getrlimit(which).ok().map(|(soft, _)| soft).filter(|&soft| soft != RLIM_INFINITY)
}

/// Returns whether the process has CAP_IPC_LOCK in the initial user namespace, the only namespace
/// where this capability lifts the limit. This namespace is recognized by its complete map of user
/// ids.
fn may_lock_all() -> bool {
    let map = devices::read("/proc/self/uid_map").unwrap_or_default();
    has_lock_capability() && (map.is_empty() || map.split_whitespace().eq(["0", "0", "4294967295"]))
}

fn has_lock_capability() -> bool {
    let status = devices::read("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set >> CAP_IPC_LOCK & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::State;

    #[test]
    fn few_descriptors_are_a_warning() {
        for (limit, state) in [(Some(255), State::Warning), (Some(256), State::Ok), (None, State::Ok)] {
            let mut report = Report::default();
            descriptors(&mut report, limit);
            assert_eq!(report.worst(), state, "{limit:?}");
        }
    }
}
