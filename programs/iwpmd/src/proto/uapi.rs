//! Constants of `rdma/rdma_netlink.h`: the client, the operations, and the attributes that are read
//! in messages from the kernel. The attributes of messages to the kernel are numbered from 1.
#![allow(missing_docs, reason = "the names are the kernel's")]

pub const RDMA_NL_IWCM: u8 = 2;

pub const IWPM_FLAGS_NO_PORT_MAP: u32 = 1;

pub const RDMA_NL_IWPM_REG_PID: u16 = 0;
pub const RDMA_NL_IWPM_ADD_MAPPING: u16 = 1;
pub const RDMA_NL_IWPM_QUERY_MAPPING: u16 = 2;
pub const RDMA_NL_IWPM_REMOVE_MAPPING: u16 = 3;
pub const RDMA_NL_IWPM_REMOTE_INFO: u16 = 4;
pub const RDMA_NL_IWPM_HANDLE_ERR: u16 = 5;
pub const RDMA_NL_IWPM_MAPINFO: u16 = 6;
pub const RDMA_NL_IWPM_MAPINFO_NUM: u16 = 7;
pub const RDMA_NL_IWPM_HELLO: u16 = 8;

pub const IWPM_NLA_REG_IF_NAME: u16 = 2;
pub const IWPM_NLA_REG_IBDEV_NAME: u16 = 3;
pub const IWPM_NLA_REG_ULIB_NAME: u16 = 4;
pub const IWPM_NLA_MANAGE_ADDR: u16 = 2;
pub const IWPM_NLA_MANAGE_FLAGS: u16 = 3;
pub const IWPM_NLA_QUERY_LOCAL_ADDR: u16 = 2;
pub const IWPM_NLA_QUERY_REMOTE_ADDR: u16 = 3;
pub const IWPM_NLA_QUERY_FLAGS: u16 = 4;
pub const IWPM_NLA_MAPINFO_LOCAL_ADDR: u16 = 1;
pub const IWPM_NLA_MAPINFO_MAPPED_ADDR: u16 = 2;
pub const IWPM_NLA_MAPINFO_FLAGS: u16 = 3;
pub const IWPM_NLA_MAPINFO_SEND_NUM: u16 = 2;
pub const IWPM_NLA_ERR_CODE: u16 = 2;
pub const IWPM_NLA_HELLO_ABI_VERSION: u16 = 1;
