/*
 * A peer that knows the rkey and the address of another connection's memory in the same process: its
 * writes over its own connection are refused, and end only that connection.
 */
#include "raw_peer.h"

/* The attacker's connection, and another raw one, whose keys the attacker knows. */
static struct peer attacker, other;
/* Number of bytes that the other one has received. */
static unsigned received;

struct target {
	uint64_t addr;
	uint32_t key;
};

static struct target their(const struct region *region, uint32_t offset)
{
	return (struct target){ be64toh(region->addr) + offset, ntohl(region->key) };
}

/* Bytes of this process's memory, looked at anew each time. */
static bool is_untouched(const struct target *target)
{
	const volatile uint8_t *bytes = (const volatile uint8_t *)(uintptr_t)target->addr;

	return !bytes[0] && !bytes[1] && !bytes[2] && !bytes[3];
}

/* The victim of the attacker has an error, and nothing to read. */
static void costs_the_attacker(void)
{
	char byte;

	EXPECT_ERROR(rrecv(attacker.victim, &byte, 1, 0), ECONNRESET);
	EXPECT(rrecv(attacker.victim, &byte, 1, 0) == 0);
	EXPECT_ERROR(rsend(attacker.victim, &byte, 1, 0), EPIPE);
}

static void costs_nobody_else(void)
{
	char bytes[8];

	EXPECT(peer_data(&other, 0, "hello"));
	EXPECT(rrecv(other.victim, bytes, 5, MSG_WAITALL) == 5 && !memcmp(bytes, "hello", 5));
	EXPECT(rsend(other.victim, "answer", 6, 0) == 6);
	peer_has(4096 + received, "answer", 6);
	good_goes_on();
}

/* The attack in each combination of who connects and who accepts. `find` says where the other connection's memory is. */
static void in_all_ways(struct target (*find)(void))
{
	static void (*const begin[])(struct peer *, bool) = { peer_connects, peer_accepts };

	good_start();
	for (int way = 0; way < 4; way++) {
		struct target target;

		begin[way & 1](&attacker, true);
		begin[way >> 1](&other, true);
		received = 0;
		target = find();
		EXPECT(is_untouched(&target));
		EXPECT(peer_say(&attacker, WORD(DATA, 4), "evil", 4, target.addr, target.key));
		costs_the_attacker();
		EXPECT(is_untouched(&target));
		costs_nobody_else();
		peer_close(&attacker);
		peer_close(&other);
	}
	good_stop();
}

/* ---- what is attacked ----------------------------------------------------------------------- */

static struct target their_ring(void) { return their(&other.theirs.buffer, 0); }
static struct target their_sgl(void) { return their(&other.theirs.sgl, 16); }
static struct target their_table(void) { return their(&other.theirs.sgl, 32); }

/* The entry that the victim has written into the table of the raw peer. */
static struct target entry_of_table(void)
{
	struct { uint64_t offset; struct region region; } entry;

	memcpy(&entry, peer_memory + 32, sizeof(entry));
	return (struct target){ entry.region.addr, entry.region.key };
}

static struct target their_mapping(void)
{
	static _Alignas(4096) uint8_t mapped[4096];
	uint64_t addr = (uintptr_t)mapped;

	/* The peer learns of it before the next data. */
	EXPECT(riomap(other.victim, mapped, sizeof(mapped), PROT_WRITE, 0, 0) == 0);
	EXPECT(rsend(other.victim, "x", 1, 0) == 1);
	received = 1;
	peer_has(40, (const char *)&addr, sizeof(addr));
	return entry_of_table();
}

/* Memory that the program registered for connections of its own: rdma_reg_write(3). */
static struct target memory_of_an_id(void)
{
	return (struct target){ (uintptr_t)peer_memory + 3072, other.mr->rkey };
}

static void ring_of_another(void) { in_all_ways(their_ring); }
static void sgl_of_another(void) { in_all_ways(their_sgl); }
static void table_of_another(void) { in_all_ways(their_table); }
static void mapping_of_another(void) { in_all_ways(their_mapping); }
static void memory_of_a_program(void) { in_all_ways(memory_of_an_id); }

/* The right connection may write what its own victim has mapped, also where that was before it connected. */
static void mapping_of_its_own(void)
{
	static _Alignas(4096) uint8_t early[4096], late[4096];
	union address address = local_addr(AF_INET, 0);
	uint64_t addr = (uintptr_t)early;
	struct rdma_conn_param param;
	struct target target;
	union address from = local_addr(AF_INET, 0);

	EXPECT(!rdma_create_id(NULL, &other.listener, NULL, RDMA_PS_TCP));
	EXPECT(!rdma_bind_addr(other.listener, &address.sa) && !rdma_listen(other.listener, 4));
	address.in.sin_port = rdma_get_src_port(other.listener);
	EXPECT((other.victim = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	set_sizes(other.victim, 16, 8);
	EXPECT(!rbind(other.victim, &from.sa, sizeof(from.in)));
	EXPECT(riomap(other.victim, early, sizeof(early), PROT_WRITE, 0, 0) == 0);
	EXPECT(!rfcntl(other.victim, F_SETFL, O_NONBLOCK));
	EXPECT_ERROR(rconnect(other.victim, &address.sa, sizeof(address.in)), EINPROGRESS);
	EXPECT(!rdma_get_request(other.listener, &other.id));
	memcpy(&other.theirs, other.id->event->param.conn.private_data, sizeof(other.theirs));
	peer_prepare(&other, true);
	param = peer_param(&other.mine, sizeof(other.mine));
	EXPECT(!rdma_accept(other.id, &param));
	EXPECT(poll_one(other.victim, POLLOUT) == POLLOUT);
	EXPECT(!rfcntl(other.victim, F_SETFL, 0));
	EXPECT(riomap(other.victim, late, sizeof(late), PROT_WRITE, 0, 5000) == 5000);
	EXPECT(rsend(other.victim, "x", 1, 0) == 1);
	peer_has(40, (const char *)&addr, sizeof(addr));
	target = entry_of_table();
	EXPECT(peer_say(&other, WORD(CONTROL, KEEPALIVE), "good", 4, target.addr, target.key));
	EXPECT(peer_wait(&other, 0));
	EXPECT(peer_data(&other, 0, "x") && rrecv(other.victim, (char[1]){ 0 }, 1, 0) == 1);
	EXPECT(!memcmp(early, "good", 4));
	peer_close(&other);
}

int main(int argc, char **argv)
{
	start(argc, argv);
	CASE(ring_of_another);
	CASE(sgl_of_another);
	CASE(table_of_another);
	CASE(mapping_of_another);
	CASE(memory_of_a_program);
	CASE(mapping_of_its_own);
	return finish();
}
