/* An object that is opened while the program runs. */
#include <stdlib.h>
#include <string.h>

static __thread int turn = 7;

int plugin_turn(void) { return turn++; }

char *plugin_give(const char *text) { return strdup(text); }

void plugin_take(char *block) { free(block); }
