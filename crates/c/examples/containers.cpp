// Containers of the C++ standard library in limited memory: a memory resource over regions.
//
// c++ -std=c++17 -O2 containers.cpp $(pkg-config --cflags --libs overspill) -o containers && ./containers

#include <overspill.h>

#include <cstdio>
#include <memory>
#include <memory_resource>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

// Gives a region for each piece; small pieces are cut from larger ones by a pool resource above.
class LimitedMemory : public std::pmr::memory_resource {
public:
	LimitedMemory(std::uint64_t memory_bytes, const char *swap)
	{
		const char *swaps[] = {swap, nullptr};
		overspill_options options = {};
		options.memory_bytes = memory_bytes;
		options.swaps = swaps;
		limit_.reset(overspill_new(&options));
		if (!limit_)
			throw std::runtime_error(overspill_error());
	}

	overspill_stats stats() const
	{
		overspill_stats stats;
		overspill_get_stats(limit_.get(), &stats);
		return stats;
	}

private:
	struct Free {
		void operator()(overspill *limit) const { overspill_free(limit); }
		void operator()(overspill_region *region) const { overspill_region_free(region); }
	};
	using Region = std::unique_ptr<overspill_region, Free>;

	void *do_allocate(std::size_t bytes, std::size_t) override
	{
		Region region(overspill_region_new(limit_.get(), bytes, OVERSPILL_BY_MESSAGE));
		if (!region)
			throw std::bad_alloc();
		void *data = overspill_region_data(region.get());
		regions_.emplace(data, std::move(region));
		return data;
	}

	void do_deallocate(void *data, std::size_t, std::size_t) override { regions_.erase(data); }

	bool do_is_equal(const memory_resource &other) const noexcept override { return this == &other; }

	std::unique_ptr<overspill, Free> limit_;
	std::unordered_map<void *, Region> regions_;
};

} // namespace

int main()
{
	LimitedMemory memory(16 << 20, "ram:256M");
	std::pmr::unsynchronized_pool_resource pieces({0, 1 << 20}, &memory);

	std::pmr::vector<std::uint64_t> numbers(4 << 20, &memory);
	std::iota(numbers.begin(), numbers.end(), 0);
	std::pmr::unordered_map<std::uint64_t, std::pmr::string> names(&pieces);
	for (std::uint64_t n = 0; n < 200000; n++)
		names.emplace(n, "the name of number " + std::to_string(n));

	const std::uint64_t sum = std::accumulate(numbers.begin(), numbers.end(), std::uint64_t{0});
	const std::uint64_t count = numbers.size();
	if (sum != count * (count - 1) / 2 || names.at(123456) != "the name of number 123456")
		return 1;
	const overspill_stats stats = memory.stats();
	std::printf("%llu pages out, %llu in\n", static_cast<unsigned long long>(stats.pages_out),
	            static_cast<unsigned long long>(stats.pages_in));
	return stats.pages_out == 0;
}
