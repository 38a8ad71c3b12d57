/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Prints what the inline functions of rdma_verbs.h, rdma_cma.h and ib.h do, for make abi-check: the same with the
 * reference's headers and with ours. The verbs behind them are those below, which print their arguments and return what
 * the case says. With the argument "failures" it tests, silently, what is different on purpose.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <infiniband/ib.h>
#include <rdma/rdma_verbs.h>

#undef ibv_reg_mr

static int results[8]; /* of the next calls, in their order */
static int next;
static int datagram; /* whether wr.ud is set */
static char memory[64];
static struct ibv_mr mr;
static struct ibv_cq send_cq, recv_cq;
static struct ibv_comp_channel send_channel, recv_channel;
static struct rdma_cm_id id;

static void expect(const char *name, const int *values, size_t size)
{
    printf("case %s\n", name);
    memset(results, 0, sizeof results);
    memcpy(results, values, size);
    next = 0;
    errno = 77;
}

#define CASE(name, ...) \
    do { \
        static const int values[] = {__VA_ARGS__}; \
        expect(name, values, sizeof values); \
    } while (0)

/* The result of a verb; one that returns -1 sets errno. */
static int result(void)
{
    int value = results[next++ % 8];

    if (value == -1)
        errno = EBADF;
    return value;
}

static void done(int value)
{
    if (errno == 77)
        printf("  = %d\n", value);
    else
        printf("  = %d errno %d\n", value, errno);
}

static void print_sge(const struct ibv_sge *sge, int count)
{
    int n;

    for (n = 0; n < count; n++)
        printf(" [%d at %d key %x]", (int)sge[n].length, (int)((char *)(uintptr_t)sge[n].addr - memory), sge[n].lkey);
    printf("\n");
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    printf("  post_send qp %u wr_id %d opcode %d flags %x next %d", qp->qp_num, (int)wr->wr_id, (int)wr->opcode,
           wr->send_flags, wr->next != NULL);
    if (wr->opcode == IBV_WR_RDMA_READ || wr->opcode == IBV_WR_RDMA_WRITE)
        printf(" remote %llx %x", (unsigned long long)wr->wr.rdma.remote_addr, wr->wr.rdma.rkey);
    else if (datagram)
        printf(" ud qpn %u qkey %x ah %d", wr->wr.ud.remote_qpn, wr->wr.ud.remote_qkey, wr->wr.ud.ah != NULL);
    print_sge(wr->sg_list, wr->num_sge);
    *bad = wr;
    return result();
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    printf("  post_recv qp %u wr_id %d next %d", qp->qp_num, (int)wr->wr_id, wr->next != NULL);
    print_sge(wr->sg_list, wr->num_sge);
    *bad = wr;
    return result();
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    printf("  post_srq_recv srq %u wr_id %d next %d", srq->handle, (int)wr->wr_id, wr->next != NULL);
    print_sge(wr->sg_list, wr->num_sge);
    *bad = wr;
    return result();
}

static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
    (void)wc;
    printf("  poll_cq %u for %d\n", cq->handle, count);
    return result();
}

static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
    printf("  req_notify_cq %u solicited %d\n", cq->handle, solicited);
    return result();
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **context)
{
    printf("  get_cq_event of %d\n", channel->fd);
    *cq = channel == &send_channel ? &send_cq : &recv_cq;
    *context = &id;
    return result();
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
    printf("  ack_cq_events %u of cq %u\n", count, cq->handle);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    printf("  reg_mr pd %u %d bytes at %d access %x\n", pd->handle, (int)length, (int)((char *)addr - memory), access);
    return result() ? NULL : &mr;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
    (void)iova;
    return ibv_reg_mr(pd, addr, length, (int)access);
}

int ibv_dereg_mr(struct ibv_mr *region)
{
    printf("  dereg_mr %d\n", region == &mr);
    return result();
}

static void registrations(void)
{
    CASE("reg_msgs", 0);
    printf("  %d\n", rdma_reg_msgs(&id, memory, 10) == &mr);
    CASE("reg_read", 0);
    printf("  %d\n", rdma_reg_read(&id, memory + 1, 11) == &mr);
    CASE("reg_write", 0);
    printf("  %d\n", rdma_reg_write(&id, memory + 2, 12) == &mr);
    CASE("reg_msgs fails", 1);
    printf("  %d\n", rdma_reg_msgs(&id, memory, 10) == NULL);
    CASE("dereg", 0);
    done(rdma_dereg_mr(&mr));
    CASE("dereg fails", EBUSY);
    done(rdma_dereg_mr(&mr));
}

static void posts(void)
{
    void *context = (void *)(uintptr_t)5;
    struct ibv_sge list[2];
    struct ibv_ah ah;

    list[0].addr = (uintptr_t)memory;
    list[0].length = 3;
    list[0].lkey = 0x11;
    list[1].addr = (uintptr_t)memory + 9;
    list[1].length = 4;
    list[1].lkey = 0x12;
    CASE("recvv", 0);
    done(rdma_post_recvv(&id, context, list, 2));
    CASE("recvv fails", ENOMEM);
    done(rdma_post_recvv(&id, context, list, 1));
    CASE("recv", 0);
    done(rdma_post_recv(&id, context, memory, 8, &mr));
    CASE("sendv", 0);
    done(rdma_post_sendv(&id, context, list, 2, IBV_SEND_SIGNALED));
    CASE("sendv fails", EINVAL);
    done(rdma_post_sendv(&id, context, list, 0, 0));
    CASE("readv", 0);
    done(rdma_post_readv(&id, context, list, 2, IBV_SEND_FENCE, 0x123456789aULL, 0x77));
    CASE("writev", 0);
    done(rdma_post_writev(&id, context, list, 1, IBV_SEND_INLINE, 0x123456789aULL, 0x78));
    CASE("send", 0);
    done(rdma_post_send(&id, context, memory + 1, 7, &mr, IBV_SEND_SOLICITED));
    CASE("send inline", 0);
    done(rdma_post_send(&id, context, memory + 1, 7, NULL, IBV_SEND_INLINE));
    CASE("read", 0);
    done(rdma_post_read(&id, context, memory + 2, 6, &mr, 0, 0x1000, 0x79));
    CASE("write", 0);
    done(rdma_post_write(&id, context, memory + 3, 5, &mr, IBV_SEND_SIGNALED, 0x2000, 0x7a));
    CASE("write inline", ENOSYS);
    done(rdma_post_write(&id, context, memory + 3, 5, NULL, IBV_SEND_INLINE, 0x2000, 0x7a));
    datagram = 1;
    CASE("ud send", 0);
    done(rdma_post_ud_send(&id, context, memory, 4, &mr, IBV_SEND_SIGNALED, &ah, 0x1234));
    CASE("ud send inline", ENOMEM);
    done(rdma_post_ud_send(&id, context, memory, 4, NULL, IBV_SEND_INLINE, &ah, 0x1234));
    datagram = 0;
}

static void completions(int (*get)(struct rdma_cm_id *, struct ibv_wc *))
{
    struct ibv_wc wc;

    CASE("there", 1);
    done(get(&id, &wc));
    CASE("there after arming", 0, 0, 1);
    done(get(&id, &wc));
    CASE("after an event", 0, 0, 0, 0, 1);
    done(get(&id, &wc));
    CASE("after an empty event", 0, 0, 0, 0, 0, 0, 1);
    done(get(&id, &wc));
    CASE("arming fails", 0, EINVAL);
    done(get(&id, &wc));
    CASE("event fails", 0, 0, 0, -1);
    done(get(&id, &wc));
}

static void addresses(void)
{
    struct ib_addr a, b;

    CASE("id", 0);
    printf("  %d %d\n", rdma_get_local_addr(&id) == &id.route.addr.src_addr,
           rdma_get_peer_addr(&id) == &id.route.addr.dst_addr);
    CASE("seterrno", 0);
    done(rdma_seterrno(0));
    done(rdma_seterrno(ENXIO));
    CASE("ib_addr", 0);
    ib_addr_set(&a, htobe32(1), htobe32(2), htobe32(3), htobe32(4));
    printf("  %x %x %x %x\n", be32toh(a.sib_addr32[0]), be32toh(a.sib_addr32[1]), be32toh(a.sib_addr32[2]),
           be32toh(a.sib_addr32[3]));
    ib_addr_set(&b, htobe32(1), htobe32(2), htobe32(3), htobe32(5));
    printf("  %d %d %d\n", ib_addr_cmp(&a, &b) < 0, ib_addr_cmp(&b, &a) > 0, ib_addr_cmp(&a, &a));
    printf("  %d %d\n", !!ib_addr_any(&a), !!ib_addr_loopback(&a));
    ib_addr_set(&a, 0, 0, 0, 0);
    printf("  %d %d\n", !!ib_addr_any(&a), !!ib_addr_loopback(&a));
    ib_addr_set(&a, 0, 0, 0, htobe32(1));
    printf("  %d %d\n", !!ib_addr_any(&a), !!ib_addr_loopback(&a));
    ib_addr_set(&a, htobe32(1), 0, 0, 0);
    printf("  %d %d\n", !!ib_addr_any(&a), !!ib_addr_loopback(&a));
    ib_addr_set(&a, 0, 0, 0, 1);
    printf("  %d %d\n", !!ib_addr_any(&a), !!ib_addr_loopback(&a) && htobe32(1) != 1);
}

/* What the reference gets wrong: it makes an errno of any result that is not 0, negative ones too. */
static int failures(void)
{
    struct ibv_wc wc;
    int wrong = 0;

    CASE("results below zero", -1, 0, 0, -1);
    wrong += rdma_dereg_mr(&mr) != -1 || errno != EBADF;
    errno = 77;
    wrong += rdma_get_send_comp(&id, &wc) != -1 || errno != EBADF;
    CASE("no errno", -2);
    wrong += rdma_get_recv_comp(&id, &wc) != -1 || errno != 77;
    wrong += rdma_seterrno(-EPERM) != -1 || errno != 77;
    wrong += rdma_post_recv(&id, NULL, memory, 8, NULL) != -1 || errno != EINVAL;
    errno = 77;
    wrong += rdma_post_read(&id, NULL, memory, 8, NULL, 0, 0, 0) != -1 || errno != EINVAL;
    return wrong != 0;
}

int main(int argc, char **argv)
{
    static struct ibv_context context;
    static struct ibv_pd pd;
    static struct ibv_qp qp;
    static struct ibv_srq srq;

    context.ops.post_send = post_send;
    context.ops.post_recv = post_recv;
    context.ops.post_srq_recv = post_srq_recv;
    context.ops.poll_cq = poll_cq;
    context.ops.req_notify_cq = req_notify_cq;
    pd.handle = 4;
    mr.addr = memory;
    mr.length = sizeof memory;
    mr.lkey = 0x4c;
    mr.rkey = 0x52;
    qp.context = srq.context = send_cq.context = recv_cq.context = &context;
    qp.qp_num = 6;
    srq.handle = 7;
    send_cq.handle = 1;
    recv_cq.handle = 2;
    send_channel.fd = 11;
    recv_channel.fd = 12;
    id.pd = &pd;
    id.qp = &qp;
    id.send_cq = &send_cq;
    id.recv_cq = &recv_cq;
    id.send_cq_channel = &send_channel;
    id.recv_cq_channel = &recv_channel;
    if (argc > 1 && !strcmp(argv[1], "failures"))
        return failures();
    registrations();
    posts();
    id.srq = &srq;
    CASE("recvv with an SRQ", 0);
    done(rdma_post_recv(&id, NULL, memory, 8, &mr));
    CASE("recvv with an SRQ fails", ENOMEM);
    done(rdma_post_recv(&id, NULL, memory, 8, &mr));
    printf("send\n");
    completions(rdma_get_send_comp);
    printf("receive\n");
    completions(rdma_get_recv_comp);
    addresses();
    return 0;
}
