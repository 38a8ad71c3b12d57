/* See sa.h. Layouts: InfiniBand specification, 13.4.3, 15.2.1 and 15.2.5.14. */
#include "sa.h"

#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/ib_user_mad.h>
#include <sys/ioctl.h>

enum { CLASS_SA = 3, SA_VERSION = 2, METHOD_SET = 2, ATTRIBUTE_SERVICE = 0x31 };
enum { HAS_ID = 1, HAS_GID = 2, HAS_PKEY = 4, HAS_LEASE = 0x10, HAS_NAME = 0x40, HAS_DATA = 0x80 };

struct service_record {
	uint64_t id;
	uint8_t gid[16];
	uint16_t pkey, reserved;
	uint32_t lease;
	uint8_t key[16];
	char name[64];
	uint8_t data[64];
} __attribute__((packed));

struct sa_mad {
	uint8_t base_version, class, class_version, method;
	uint16_t status, class_specific;
	uint64_t tid;
	uint16_t attribute, reserved;
	uint32_t modifier;
	uint8_t rmpp[12];
	uint64_t key;
	uint16_t offset, reserved2;
	uint64_t mask;
	struct service_record record;
	uint8_t rest[200 - sizeof(struct service_record)];
} __attribute__((packed));

struct message {
	struct ib_user_mad_hdr header;
	struct sa_mad mad;
} __attribute__((packed));

/* The first line of a file, without its end. */
static bool read_line(const char *path, char *line, int size)
{
	FILE *file = fopen(path, "r");
	bool found = file && fgets(line, size, file);

	if (file)
		fclose(file);
	if (found)
		line[strcspn(line, "\n")] = 0;
	return found;
}

static unsigned port_number(const char *device, const char *what)
{
	char path[128], line[64];

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/%s", device, what);
	return read_line(path, line, sizeof(line)) ? strtoul(line, NULL, 0) : 0;
}

/* Opens the file through which programs send MADs from a device's port. */
static int open_mad(const char *device)
{
	char path[128], line[64];

	for (int i = 0; i < 16; i++) {
		snprintf(path, sizeof(path), "/sys/class/infiniband_mad/umad%d/ibdev", i);
		if (read_line(path, line, sizeof(line)) && !strcmp(line, device)) {
			snprintf(path, sizeof(path), "/dev/infiniband/umad%d", i);
			return open(path, O_RDWR);
		}
	}
	return -1;
}

static void fill_in(struct message *message, const char *device, uint64_t service, const char *name,
		    uint8_t data)
{
	static uint64_t tid;
	struct sa_mad *mad = &message->mad;
	char path[128], gid[64];

	memset(message, 0, sizeof(*message));
	message->header.timeout_ms = 5000;
	message->header.qpn = htobe32(1);
	message->header.qkey = htobe32(0x80010000);
	message->header.lid = htobe16(port_number(device, "sm_lid"));
	mad->base_version = 1;
	mad->class = CLASS_SA;
	mad->class_version = SA_VERSION;
	mad->method = METHOD_SET;
	mad->tid = htobe64(++tid);
	mad->attribute = htobe16(ATTRIBUTE_SERVICE);
	mad->mask = htobe64(HAS_ID | HAS_GID | HAS_PKEY | HAS_LEASE | HAS_NAME | HAS_DATA);
	mad->record.id = htobe64(service);
	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/gids/0", device);
	if (read_line(path, gid, sizeof(gid)))
		inet_pton(AF_INET6, gid, mad->record.gid);
	mad->record.pkey = htobe16(0xffff);
	mad->record.lease = ~0u;
	snprintf(mad->record.name, sizeof(mad->record.name), "%s", name);
	mad->record.data[0] = data;
}

/* Sends the message and waits for the answer. */
static bool exchange(int fd, struct message *message)
{
	struct ib_user_mad_reg_req agent = { .mgmt_class = CLASS_SA, .mgmt_class_version = SA_VERSION, .qpn = 1 };
	struct pollfd entry = { .fd = fd, .events = POLLIN };
	bool done;

	if (ioctl(fd, IB_USER_MAD_ENABLE_PKEY) || ioctl(fd, IB_USER_MAD_REGISTER_AGENT, &agent))
		return false;
	message->header.id = agent.id;
	done = write(fd, message, sizeof(*message)) == sizeof(*message) && poll(&entry, 1, 10000) == 1 &&
	       read(fd, message, sizeof(*message)) == sizeof(*message);
	return done && !message->header.status && !message->mad.status;
}

bool register_service(uint64_t service, const char *name, uint8_t data)
{
	const char *device = getenv("IB_DEV");
	struct message message;
	bool registered = false;
	int fd;

	if (!device)
		return false;
	fd = open_mad(device);
	if (fd >= 0) {
		fill_in(&message, device, service, name, data);
		registered = exchange(fd, &message);
		close(fd);
	}
	return registered;
}
