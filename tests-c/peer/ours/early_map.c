/*
 * Memory that is mapped before the rsocket is connected, when the size of the peer's table is still
 * unknown: nothing is written beyond that table. Run on ours only: the reference writes there.
 */
#include "raw_peer.h"

enum { MAPPINGS = 6, ROOM = 4, PIECE = 512, ENTRY = 24, TABLE = 32 };

struct entry {
	uint64_t offset;
	struct region region;
};
_Static_assert(sizeof(struct entry) == ENTRY, "as on the wire");

static struct peer peer;
static _Alignas(4096) uint8_t memory[MAPPINGS][PIECE];

/* A bound rsocket with mappings of all of the memory, at their numbers. */
static int mapped_socket(unsigned mappings)
{
	union address from = local_addr(AF_INET, 0);
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);

	EXPECT(fd >= 0);
	set_sizes(fd, 16, 8);
	EXPECT(!rbind(fd, &from.sa, sizeof(from.in)));
	for (unsigned i = 0; i < mappings; i++)
		EXPECT(riomap(fd, memory[i], PIECE, PROT_WRITE, 0, i * PIECE) == i * PIECE);
	return fd;
}

/* It connects to a raw peer whose table has so many entries. */
static void connects_to_peer(uint8_t room)
{
	union address address = local_addr(AF_INET, 0);
	struct rdma_conn_param param;

	EXPECT(!rdma_create_id(NULL, &peer.listener, NULL, RDMA_PS_TCP));
	EXPECT(!rdma_bind_addr(peer.listener, &address.sa) && !rdma_listen(peer.listener, 4));
	address.in.sin_port = rdma_get_src_port(peer.listener);
	peer.victim = mapped_socket(MAPPINGS);
	EXPECT(!rfcntl(peer.victim, F_SETFL, O_NONBLOCK));
	EXPECT_ERROR(rconnect(peer.victim, &address.sa, sizeof(address.in)), EINPROGRESS);
	EXPECT(!rdma_get_request(peer.listener, &peer.id));
	memcpy(&peer.theirs, peer.id->event->param.conn.private_data, sizeof(peer.theirs));
	peer_prepare(&peer, true);
	peer.mine.iomap_size = room;
	param = peer_param(&peer.mine, sizeof(peer.mine));
	EXPECT(!rdma_accept(peer.id, &param));
	EXPECT(poll_one(peer.victim, POLLOUT) == POLLOUT);
	EXPECT(!rfcntl(peer.victim, F_SETFL, 0));
}

/* A byte that the victim sends: all that it wrote before has arrived with it. */
static void byte_arrives(unsigned number)
{
	EXPECT(rsend(peer.victim, "x", 1, 0) == 1);
	peer_has(4096 + number, "x", 1);
}

static struct entry entry(unsigned index)
{
	struct entry entry;

	memcpy(&entry, peer_memory + TABLE + index * ENTRY, sizeof(entry));
	return entry;
}

static void is_mapping(unsigned index, unsigned mapping)
{
	struct entry now = entry(index);

	EXPECT(now.offset == mapping * PIECE && now.region.addr == (uintptr_t)memory[mapping]);
	EXPECT(now.region.length == PIECE && now.region.key != 0);
}

/* Nothing between the table and the peer's receives. */
static void nothing_behind(unsigned room)
{
	for (unsigned at = TABLE + room * ENTRY; at < 2048; at++)
		EXPECT(peer_memory[at] == 0);
}

static void as_many_as_there_is_room_for(void)
{
	connects_to_peer(ROOM);
	byte_arrives(0);
	for (unsigned i = 0; i < ROOM; i++)
		is_mapping(i, i);
	nothing_behind(ROOM);
	/* No more, now that it is known. */
	EXPECT_ERROR((int)riomap(peer.victim, peer_memory, PIECE, PROT_WRITE, 0, 0), ENOMEM);
	EXPECT(riomap(peer.victim, peer_memory, PIECE, PROT_NONE, 0, 0) == 0);
	/* Those that wait get the entries that come free. */
	EXPECT(!riounmap(peer.victim, memory[2], PIECE));
	byte_arrives(1);
	is_mapping(2, 4);
	EXPECT(!riounmap(peer.victim, memory[5], PIECE));
	EXPECT(!riounmap(peer.victim, memory[0], PIECE));
	byte_arrives(2);
	EXPECT(entry(0).region.length == 0);
	is_mapping(1, 1);
	is_mapping(2, 4);
	is_mapping(3, 3);
	EXPECT(riomap(peer.victim, memory[0], PIECE, PROT_WRITE, 0, 0) == 0);
	byte_arrives(3);
	is_mapping(0, 0);
	nothing_behind(ROOM);
	peer_close(&peer);
}

static void no_table(void)
{
	connects_to_peer(0);
	byte_arrives(0);
	nothing_behind(0);
	EXPECT_ERROR((int)riomap(peer.victim, peer_memory, PIECE, PROT_WRITE, 0, 0), ENOMEM);
	for (unsigned i = 0; i < MAPPINGS; i++)
		EXPECT(!riounmap(peer.victim, memory[i], PIECE));
	byte_arrives(1);
	nothing_behind(0);
	peer_close(&peer);
}

/* Rsockets at both ends, the peer's with a smaller table. */
static void among_rsockets(void)
{
	union address address = local_addr(AF_INET, 0);
	socklen_t len = sizeof(address);
	int listener = rsocket(AF_INET, SOCK_STREAM, 0), client, server;
	uint8_t bytes[PIECE];

	set_sizes(listener, 0, 2);
	EXPECT(!rbind(listener, &address.sa, sizeof(address.in)) && !rlisten(listener, 1));
	EXPECT(!rgetsockname(listener, &address.sa, &len));
	client = mapped_socket(MAPPINGS);
	EXPECT(!rconnect(client, &address.sa, sizeof(address.in)));
	EXPECT((server = raccept(listener, NULL, NULL)) >= 0);
	EXPECT(rsend(client, "x", 1, 0) == 1 && rrecv(server, bytes, 1, 0) == 1);
	memset(bytes, 7, sizeof(bytes));
	for (unsigned i = 0; i < MAPPINGS; i++)
		EXPECT(riowrite(server, bytes, PIECE, i * PIECE, 0) == (i < 2 ? PIECE : 0));
	EXPECT(rsend(server, "x", 1, 0) == 1 && rrecv(client, bytes, 1, 0) == 1);
	EXPECT(memory[0][0] == 7 && memory[1][PIECE - 1] == 7 && memory[2][0] == 0);
	EXPECT(!rclose(client) && !rclose(server) && !rclose(listener));
}

/* The peer has its entry taken back when there is a credit for the message, even if there was none at first. */
static void told_later(void)
{
	unsigned sent = 0;

	connects_to_peer(ROOM);
	byte_arrives(sent++);
	is_mapping(0, 0);
	while (rsend(peer.victim, "x", 1, MSG_DONTWAIT) == 1)
		sent++;
	EXPECT(!riounmap(peer.victim, memory[0], PIECE));
	is_mapping(0, 0);
	EXPECT(peer_word(&peer, WORD(GRANT, PEER_CREDITS + sent)));
	byte_arrives(sent);
	is_mapping(0, 4);
	peer_close(&peer);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(as_many_as_there_is_room_for);
	CASE(no_table);
	CASE(among_rsockets);
	CASE(told_later);
	return finish();
}
