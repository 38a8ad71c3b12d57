//! Generates Rust types of the kernel's RDMA user interface, and of libibverbs structures, from the
//! headers of this machine (linux-libc-dev, libibverbs-dev).

use std::{env, error::Error, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=src/os/uapi.h");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    bindgen::Builder::default()
        .header("src/os/uapi.h")
        .allowlist_type("rdma_ucm_.*|rdma_nl.*|rdma_nldev_.*|ib_user_.*|ib_path_rec_data|ib_uverbs_(qp|ah)_attr")
        .allowlist_type("ib_uverbs_(attr|ioctl_hdr|post_send|write_cmds)|uverbs_default_objects|uverbs_methods_device")
        .allowlist_type("uverbs_attrs_invoke_write_cmd_attr_ids|rdma_driver_id")
        .allowlist_type("ibv_sa_path_rec|ibv_path_data|ibv_path_record|verbs_context")
        .allowlist_var("RDMA_USER_CM_.*|RDMA_NL.*|IWPM_.*|RDMA_MAX_PRIVATE_DATA|RDMA_OPTION_.*|IBV_PATH_.*")
        .allowlist_var("UVERBS_ATTR_F_MANDATORY")
        .prepend_enum_name(false)
        .derive_default(true)
        .derive_debug(false)
        .layout_tests(true)
        .generate_comments(false)
        .generate()?
        .write_to_file(out.join("uapi.rs"))?;
    Ok(())
}
