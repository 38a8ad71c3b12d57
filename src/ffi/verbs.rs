//! Types of libibverbs in the signatures of the public functions.

pub use ibverbs_sys::{
    ibv_context, ibv_ece, ibv_pd, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq_init_attr,
    ibv_srq_init_attr_ex,
};

pub use super::ibv_event_type_t;
