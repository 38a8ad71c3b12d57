/*
 * Service records of the subnet administrator, registered as any program may: by a MAD that is
 * written to the port's device file.
 */
#ifndef TESTS_C_SA_H
#define TESTS_C_SA_H

#include "common.h"

/* Registers a record for the first InfiniBand port: the service's id and name, and the first byte
 * of its data. False if the subnet administrator did not take it. */
bool register_service(uint64_t service, const char *name, uint8_t data);

#endif
