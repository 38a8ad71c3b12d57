/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * For make abi-check: NULL where a pointer is required is an error, not a crash; where there is nothing to do it is
 * nothing, and errno stays. Prints what is wrong; exit status 1 then.
 */
#include <errno.h>
#include <stdio.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#include <sys/epoll.h>

static int wrong;

static void expect(const char *call, long result, long wanted, int wanted_errno)
{
    if (result == wanted && errno == wanted_errno)
        return;
    printf("%s: %ld errno %d, not %ld errno %d\n", call, result, errno, wanted, wanted_errno);
    wrong = 1;
}

/* EXPECT: what a call returns and leaves in errno; NOTHING: a call without a result leaves errno alone. */
#define EXPECT(wanted, wanted_errno, call) (errno = 77, expect(#call, (long)(call), (wanted), (wanted_errno)))
#define NOTHING(call) (errno = 77, (void)(call), expect(#call, 0, 0, 77))
#define INVALID(call) EXPECT(-1, EINVAL, call)
#define STRANGER(call) EXPECT(-1, EBADF, call)

static void ids(void)
{
    struct sockaddr address = {0};
    struct rdma_cm_id *id;

    INVALID(rdma_create_id(NULL, NULL, NULL, RDMA_PS_TCP));
    INVALID(rdma_create_ep(NULL, NULL, NULL, NULL));
    INVALID(rdma_create_ep(&id, NULL, NULL, NULL));
    INVALID(rdma_destroy_id(NULL));
    INVALID(rdma_migrate_id(NULL, NULL));
    INVALID(rdma_set_option(NULL, 0, 0, NULL, 0));
    INVALID(rdma_init_qp_attr(NULL, NULL, NULL));
    INVALID(rdma_notify(NULL, IBV_EVENT_COMM_EST));
    INVALID(rdma_set_local_ece(NULL, NULL));
    INVALID(rdma_get_remote_ece(NULL, NULL));
    INVALID(rdma_write_cm_event(NULL, RDMA_CM_EVENT_USER, 0, 0));
    INVALID(rdma_bind_addr(NULL, &address));
    INVALID(rdma_resolve_addr(NULL, NULL, &address, 0));
    INVALID(rdma_resolve_route(NULL, 0));
    INVALID(rdma_connect(NULL, NULL));
    INVALID(rdma_establish(NULL));
    INVALID(rdma_listen(NULL, 0));
    INVALID(rdma_get_request(NULL, &id));
    INVALID(rdma_accept(NULL, NULL));
    INVALID(rdma_reject(NULL, NULL, 0));
    INVALID(rdma_reject_ece(NULL, NULL, 0));
    INVALID(rdma_disconnect(NULL));
    INVALID(rdma_join_multicast(NULL, &address, NULL));
    INVALID(rdma_join_multicast_ex(NULL, NULL, NULL));
    INVALID(rdma_leave_multicast(NULL, &address));
    INVALID(rdma_resolve_addrinfo(NULL, NULL, NULL, NULL));
    INVALID(rdma_query_addrinfo(NULL, NULL));
    EXPECT(0, EINVAL, rdma_get_src_port(NULL));
    EXPECT(0, EINVAL, rdma_get_dst_port(NULL));
}

static void others(void)
{
    struct rdma_addrinfo *info;
    struct rdma_cm_event *event;

    INVALID(rdma_create_qp(NULL, NULL, NULL));
    INVALID(rdma_create_qp_ex(NULL, NULL));
    INVALID(rdma_create_srq(NULL, NULL, NULL));
    INVALID(rdma_create_srq_ex(NULL, NULL));
    INVALID(rdma_get_cm_event(NULL, &event));
    INVALID(rdma_ack_cm_event(NULL));
    INVALID(rdma_getaddrinfo("localhost", NULL, NULL, NULL));
    INVALID(rdma_getaddrinfo(NULL, NULL, NULL, &info));
    NOTHING(rdma_destroy_event_channel(NULL));
    NOTHING(rdma_free_devices(NULL));
    NOTHING(rdma_freeaddrinfo(NULL));
    errno = 77;
    rdma_destroy_qp(NULL);
    expect("rdma_destroy_qp(NULL)", 0, 0, EINVAL);
    errno = 77;
    rdma_destroy_srq(NULL);
    expect("rdma_destroy_srq(NULL)", 0, 0, EINVAL);
    errno = 77;
    rdma_destroy_ep(NULL);
    expect("rdma_destroy_ep(NULL)", 0, 0, EINVAL);
}

/* Descriptor 0 is none of theirs. */
static void rsockets(void)
{
    struct epoll_event event;

    STRANGER(rclose(0));
    STRANGER(rlisten(0, 1));
    STRANGER(raccept(0, NULL, NULL));
    STRANGER(rshutdown(0, 0));
    STRANGER(rrecv(0, NULL, 0, 0));
    STRANGER(rsend(0, NULL, 0, 0));
    STRANGER(rfcntl(0, 3));
    STRANGER(riounmap(0, NULL, 0));
    STRANGER(riowrite(0, NULL, 0, 0, 0));
    STRANGER(repoll_ctl(0, 1, 0, NULL));
    EXPECT(-1, EFAULT, rbind(0, NULL, 0));
    EXPECT(-1, EFAULT, rconnect(0, NULL, 0));
    EXPECT(-1, EFAULT, rrecv(0, NULL, 1, 0));
    EXPECT(-1, EFAULT, rsend(0, NULL, 1, 0));
    EXPECT(-1, EFAULT, rrecvmsg(0, NULL, 0));
    EXPECT(-1, EFAULT, rsendmsg(0, NULL, 0));
    EXPECT(-1, EFAULT, rgetsockopt(0, 0, 0, NULL, NULL));
    STRANGER(rgetsockname(0, NULL, NULL));
    EXPECT(-1, EFAULT, rpoll(NULL, 1, 0));
    EXPECT(-1, EFAULT, repoll_wait(0, NULL, 1, 0));
    INVALID(repoll_wait(0, &event, 0, 0));
    INVALID(riomap(0, NULL, 0, 0, 0, 0));
    INVALID(rselect(-1, NULL, NULL, NULL, NULL));
    EXPECT(0, 77, rpoll(NULL, 0, 0));
}

int main(void)
{
    ids();
    others();
    rsockets();
    return wrong;
}
