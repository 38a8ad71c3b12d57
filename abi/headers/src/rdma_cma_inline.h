
/** The local address of an id; its family is 0 while there is none. */
static inline struct sockaddr *rdma_get_local_addr(struct rdma_cm_id *id)
{
    return &id->route.addr.src_addr;
}

/** The remote address of an id; its family is 0 while there is none. */
static inline struct sockaddr *rdma_get_peer_addr(struct rdma_cm_id *id)
{
    return &id->route.addr.dst_addr;
}
