
/** The local address of an id; the family is 0 until the address is known. */
static inline struct sockaddr *rdma_get_local_addr(struct rdma_cm_id *id)
{
    return &id->route.addr.src_addr;
}

/** The remote address of an id; the family is 0 until the address is known. */
static inline struct sockaddr *rdma_get_peer_addr(struct rdma_cm_id *id)
{
    return &id->route.addr.dst_addr;
}
