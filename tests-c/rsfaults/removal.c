/*
 * The device is removed while a call waits: the call fails with ENETDOWN, and closing frees all resources, so that the
 * removal completes. The same process can use a new device.
 */
#include "child.h"

#include <sys/epoll.h>
#include <sys/mman.h>

static pid_t removal;
/* The file of an event channel; those of completion channels look the same. */
static int async_fd;

/* Starts the script in this folder as a child process. */
static pid_t link_begins(const char *what)
{
	pid_t pid = fork();

	EXPECT(pid >= 0);
	if (pid == 0) {
		execl(getenv("RSFAULTS_LINK"), "link", device, what, NULL);
		_exit(127);
	}
	return pid;
}

static void link_ends(pid_t pid)
{
	int status;

	EXPECT(waitpid(pid, &status, 0) == pid && status == 0);
}

/* Returns the file that a descriptor refers to. */
static const char *target_of(int fd)
{
	static char link[256];
	char path[64];
	ssize_t length;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	length = readlink(path, link, sizeof(link) - 1);
	link[length < 0 ? 0 : length] = '\0';
	return link;
}

#define CHANNEL "[infinibandevent]"
static bool is_channel(int fd) { return strstr(target_of(fd), CHANNEL); }

/* The first use of the device's address opens the device, which stays open. */
static void open_device(void)
{
	union address address = local_addr(AF_INET, 0);
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	EXPECT(fd >= 0 && !rbind(fd, &address.sa, sizeof(address.in)) && !rclose(fd));
	async_fd = -1;
	for (fd = 3; fd < 64; fd++)
		if (is_channel(fd)) {
			EXPECT(async_fd < 0);
			async_fd = fd;
		}
	EXPECT(async_fd >= 0);
}

static bool is_verbs(const char *path) { return strstr(path, "/dev/infiniband/uverbs"); }

/* The kernel begins a removal by removing the device's file. */
static void await_beginning(void)
{
	for (int fd = 3; fd < 64; fd++)
		while (is_verbs(target_of(fd)) && !strstr(target_of(fd), "deleted") && !access(target_of(fd), F_OK))
			pause_briefly();
}

/*
 * Drivers of real devices then disconnect the processes, and each command fails with EIO. Those of the software devices
 * wait until all processes have closed the device. Closing its descriptors without the library's knowledge has the same
 * effect: objects on the device are destroyed, and waits for completions fail with EIO. So does writing a command to
 * the file that replaces the device: this process's memory, at address 0.
 */
static void cut_off(void)
{
	int nothing = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned long from, to;
	char line[512];

	EXPECT(nothing >= 0 && maps);
	while (fgets(line, sizeof(line), maps))
		if (is_verbs(line) && sscanf(line, "%lx-%lx", &from, &to) == 2)
			EXPECT(mmap((void *)from, to - from, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == (void *)from);
	fclose(maps);
	for (int fd = 3; fd < 64; fd++)
		if (is_verbs(target_of(fd)) || fd == async_fd)
			EXPECT(dup2(nothing, fd) == fd);
	close(nothing);
}

static void device_goes(void)
{
	removal = link_begins("gone");
	/* The adapter of InfiniBand does what those of real devices do. */
	if (on_ib())
		return;
	await_beginning();
	cut_off();
}

/* All descriptors of the device are closed. */
static void device_comes_back(void)
{
	link_ends(removal);
	link_ends(link_begins("back"));
}

/* ---- calls that wait ------------------------------------------------------------------------------ */

static void begin_connection(void)
{
	char bytes[5];
	int from, to;

	begin_child(serve, &from, &to);
	open_device();
	survivor = connect_to_child(from, to);
	EXPECT(rrecv(survivor, bytes, 5, MSG_WAITALL) == 5 && !memcmp(bytes, "hello", 5));
	close(from);
	close(to);
}

static int set;
static ssize_t waits_in_set(void)
{
	int (*wait)(int, struct epoll_event *, int, int) =
		(int (*)(int, struct epoll_event *, int, int))optional_symbol("repoll_wait");
	struct epoll_event event;

	EXPECT(wait(set, &event, 1, -1) == 1);
	return event.events & (EPOLLIN | EPOLLHUP | EPOLLERR);
}
static void make_set(void)
{
	int (*make)(int) = (int (*)(int))optional_symbol("repoll_create");
	int (*change)(int, int, int, struct epoll_event *) =
		(int (*)(int, int, int, struct epoll_event *))optional_symbol("repoll_ctl");
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };

	EXPECT((set = make(0)) >= 0 && !change(set, EPOLL_CTL_ADD, survivor, &event));
}

/* siw disconnects when the QP is destroyed, and reports that at the same time: the order of the events varies. */
static void expect_down(ssize_t result, int error)
{
	EXPECT(result == -1);
	if (error != ENETDOWN && !(on_siw() && error == ECONNRESET))
		printf("     %s\n", errno_name(error));
	EXPECT(error == ENETDOWN || (on_siw() && error == ECONNRESET));
}

static void lost_in(ssize_t (*body)(void), bool polled)
{
	int before = 0;

	for (int turn = 0; turn < 3; turn++) {
		struct call call;

		begin_connection();
		set = -1;
		if (body == waits_in_set)
			make_set();
		call_begin(&call, body);
		device_goes();
		EXPECT(!pthread_join(call.thread, NULL));
		if (polled) {
			EXPECT(call.result == (POLLIN | POLLHUP | POLLERR));
			call.result = rrecv(survivor, (char[1]){ 0 }, 1, 0);
			call.error = errno;
		}
		expect_down(call.result, call.error);
		EXPECT(rrecv(survivor, (char[1]){ 0 }, 1, 0) == 0);
		EXPECT_ERROR(rsend(survivor, "x", 1, 0), EPIPE);
		EXPECT(set < 0 || !rclose(set));
		EXPECT(!rclose(survivor));
		kill_child();
		device_comes_back();
		/* The first round opens the descriptors that the library keeps. */
		if (turn < 1)
			before = open_fds();
		else
			await_fds(before);
	}
}

static void removal_in_rrecv(void) { lost_in(receives, false); }
static void removal_in_rsend(void) { lost_in(sends, false); }
static void removal_in_rpoll(void) { lost_in(polls, true); }
static void removal_in_repoll_wait(void) { lost_in(waits_in_set, true); }

/* ---- listening -------------------------------------------------------------------------------------- */

static ssize_t accepts(void) { return raccept(survivor, NULL, NULL); }

static void listen_here(void)
{
	union address address = local_addr(AF_INET, 0);

	EXPECT((survivor = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	EXPECT(!rbind(survivor, &address.sa, sizeof(address.in)) && !rlisten(survivor, 4));
}

/* A listener belongs to the device of its address, and fails when that is removed. */
static void removal_in_raccept(void)
{
	struct pollfd entry = { .events = POLLIN };
	struct call call;

	open_device();
	listen_here();
	call_begin(&call, accepts);
	device_goes();
	call_end(&call, -1, ENETDOWN);
	EXPECT_ERROR(raccept(survivor, NULL, NULL), EINVAL);
	entry.fd = survivor;
	EXPECT(rpoll(&entry, 1, -1) == 1 && entry.revents & POLLIN);
	EXPECT(!rclose(survivor));
	device_comes_back();
	listen_here();
	EXPECT(!rclose(survivor));
}

/* ---- datagrams -------------------------------------------------------------------------------------- */

static int datagram_socket(union address *name)
{
	socklen_t len = sizeof(*name);
	int fd = rsocket(AF_INET, SOCK_DGRAM, 0);

	*name = local_addr(AF_INET, 0);
	EXPECT(fd >= 0 && !rbind(fd, &name->sa, sizeof(name->in)) && !rgetsockname(fd, &name->sa, &len));
	return fd;
}

/* Exchanges datagrams until both ends use UD instead of UDP. */
static void talk(const int fd[2], const union address name[2])
{
	for (int i = 0; i < 8; i++) {
		EXPECT(rsendto(fd[i % 2], "hello", 5, 0, &name[!(i % 2)].sa, sizeof(name->in)) == 5);
		EXPECT(rrecv(fd[!(i % 2)], (char[8]){ 0 }, 8, 0) == 5);
	}
}

static int open_files(const char *name)
{
	int count = 0;

	for (int fd = 3; fd < 64; fd++)
		count += !!strstr(target_of(fd), name);
	return count;
}

/* cut_off() has replaced the event channel of the device itself, which stays open until a new device is used. */
static int kept_channels(void) { return on_ib() ? 1 : 0; }
static int completion_channels(void) { return open_files(CHANNEL); }
static int ids(void) { return open_files("/dev/infiniband/rdma_cm"); }

/* The device of a datagram socket is removed while a call waits; the call returns when the device is back and data arrives. */
static void datagrams_lost_in(ssize_t (*body)(void))
{
	union address name[2];
	struct call call;
	int fd[2];

	open_device();
	for (int i = 0; i < 2; i++)
		fd[i] = datagram_socket(&name[i]);
	talk(fd, name);
	EXPECT(completion_channels() == 1 + 2);
	survivor = fd[0];
	EXPECT(rsendto(fd[0], "kept", 4, 0, &name[1].sa, sizeof(name->in)) == 4);
	EXPECT(rpoll(&(struct pollfd){ .fd = fd[1], .events = POLLIN }, 1, -1) == 1);
	call_begin(&call, body);
	device_goes();
	/* The other socket may get the connection manager's event only after the device is free: a call checks for it. */
	while (completion_channels() > kept_channels())
		EXPECT(rpoll(&(struct pollfd){ .fd = fd[1] }, 1, 10) == 0);
	EXPECT(rrecv(fd[1], (char[8]){ 0 }, 8, 0) == 4);
	device_comes_back();
	EXPECT(rsendto(fd[1], "again", 5, 0, &name[0].sa, sizeof(name->in)) == 5);
	EXPECT(!pthread_join(call.thread, NULL));
	EXPECT(call.result == (body == receives ? 5 : POLLIN));
	if (body != receives)
		EXPECT(rrecv(fd[0], (char[8]){ 0 }, 8, 0) == 5);
	talk(fd, name);
	EXPECT(completion_channels() == 1 + 2);
	EXPECT(!rclose(fd[0]) && !rclose(fd[1]));
}

/* Without calls the connection manager's event reports the removal, when no other object of the process uses the device. */
static void removal_of_idle_datagrams(void)
{
	union address name[2];
	int fd[2], before, nothing;

	open_device();
	for (int i = 0; i < 2; i++)
		fd[i] = datagram_socket(&name[i]);
	before = ids();
	talk(fd, name);
	EXPECT(ids() >= before + 2);
	device_goes();
	EXPECT((nothing = open("/dev/null", O_RDWR | O_CLOEXEC)) >= 0);
	for (int i = 3; i < 64; i++)
		EXPECT(!is_channel(i) || dup2(nothing, i) == i);
	close(nothing);
	while (ids() > before)
		pause_briefly();
	device_comes_back();
	talk(fd, name);
	EXPECT(!rclose(fd[0]) && !rclose(fd[1]));
}

static void removal_of_datagrams_in_rrecv(void) { datagrams_lost_in(receives); }
static void removal_of_datagrams_in_rpoll(void) { datagrams_lost_in(polls); }

void removal_cases(void)
{
	FAULT(removal_in_rrecv);
	FAULT(removal_in_rsend);
	FAULT(removal_in_rpoll);
	FAULT(removal_in_repoll_wait);
	FAULT(removal_in_raccept);
	/* iWARP has no datagrams. */
	FAULT_IF(!on_siw(), removal_of_datagrams_in_rrecv);
	FAULT_IF(!on_siw(), removal_of_datagrams_in_rpoll);
	FAULT_IF(!on_siw(), removal_of_idle_datagrams);
}
