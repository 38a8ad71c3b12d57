/*
 * The node of the connection manager may be created only after the kernel was queried. On a machine with
 * udev, which has /dev/char, the library waits for it. Containers have no udev (restricted.c).
 */
#include "cases.h"

#include <dlfcn.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/sysmacros.h>
#include <sys/stat.h>

#define FOLDER "/dev/infiniband"
static const char *const uverbs[] = { FOLDER "/uverbs0", FOLDER "/uverbs1" };
enum { DEVICES = 2 };

static int waits, waits_in_vain;
/* Creates the node while the library waits for it. */
static void (*while_waiting)(void);

int poll(struct pollfd *fds, nfds_t count, int timeout)
{
	int (*next)(struct pollfd *, nfds_t, int) = (int (*)(struct pollfd *, nfds_t, int))dlsym(RTLD_NEXT, "poll");
	int ready;

	waits += timeout > 0;
	if (while_waiting)
		while_waiting();
	ready = next(fds, count, timeout);
	waits_in_vain += ready == 0 && timeout > 0;
	return ready;
}

static dev_t node;

static dev_t number_of(const char *path)
{
	struct stat status;

	EXPECT(stat(path, &status) == 0);
	return status.st_rdev;
}

static void make_node(void)
{
	EXPECT(mknod(FOLDER "/rdma_cm", S_IFCHR | 0666, node) == 0);
	while_waiting = NULL;
}

/* Its own /dev as udev makes it, without the connection manager's node. */
static void enter(void)
{
	dev_t numbers[DEVICES];

	node = number_of(FOLDER "/rdma_cm");
	for (int i = 0; i < DEVICES; i++)
		numbers[i] = number_of(uverbs[i]);
	EXPECT(unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
	EXPECT(mount("none", "/dev", "tmpfs", 0, "mode=0755") == 0);
	EXPECT(mkdir(FOLDER, 0755) == 0 && mkdir("/dev/char", 0755) == 0);
	for (int i = 0; i < DEVICES; i++)
		EXPECT(mknod(uverbs[i], S_IFCHR | 0666, numbers[i]) == 0);
}

static void made_while_waiting(void)
{
	struct rdma_event_channel *channel;

	enter();
	while_waiting = make_node;
	EXPECT((channel = rdma_create_event_channel()));
	EXPECT(waits > 0);
	EXPECT(waits_in_vain == 0);
	rdma_destroy_event_channel(channel);
}

static void waited_for_once(void)
{
	struct rdma_cm_id *id;

	enter();
	EXPECT(!rdma_create_event_channel() && errno == ENOENT);
	EXPECT(waits_in_vain == 1);
	EXPECT(!rdma_create_event_channel() && errno == ENOENT);
	EXPECT_ERROR(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), ENOMEM);
	EXPECT(waits_in_vain == 1);
	make_node();
	EXPECT(rdma_create_event_channel());
}

/* Neither needs the connection manager. */
static void not_waited_for(void)
{
	struct rdma_addrinfo *res;
	struct ibv_context **list;
	int count;

	enter();
	EXPECT((list = rdma_get_devices(&count)) && count == DEVICES);
	rdma_free_devices(list);
	EXPECT(rdma_getaddrinfo(local_node(AF_INET), "7", NULL, &res) == 0);
	rdma_freeaddrinfo(res);
	EXPECT(waits == 0);
}

/* A node exists that cannot be opened: the library does not wait for another. */
static void closed(void)
{
	char link[64];

	enter();
	make_node();
	EXPECT(chmod(FOLDER "/rdma_cm", 0600) == 0);
	snprintf(link, sizeof(link), "/dev/char/%u:%u", major(node), minor(node));
	EXPECT(symlink(FOLDER "/rdma_cm", link) == 0);
	EXPECT(setresuid(65534, 65534, 65534) == 0);
	EXPECT(!rdma_create_event_channel() && errno == EACCES);
	EXPECT(waits == 0);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(made_while_waiting);
	CASE(waited_for_once);
	CASE(not_waited_for);
	CASE(closed);
	return finish();
}
