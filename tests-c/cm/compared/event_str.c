/* rdma_event_str for all values, those outside the enumeration included. */
#include "common.h"

#include <limits.h>

int main(int argc, char **argv)
{
	static const int odd[] = { 100, 255, 256, 65536, INT_MAX, INT_MIN, -2 };

	start(argc, argv);
	topic("names");
	for (int i = -1; i <= 24; i++)
		obs("%d %s", i, rdma_event_str((enum rdma_cm_event_type)i));
	for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++)
		obs("%d %s", odd[i], rdma_event_str((enum rdma_cm_event_type)odd[i]));
	return finish();
}
