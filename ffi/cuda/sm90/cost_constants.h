// The constants of the cost model in cost.cc, each behind its unit ([x]: a factor) and its meaning. This file
// is written by benchmarks/fit.py, from the table in benchmarks/support/cost_constants.py.
#pragma once

namespace jaxgemm::cuda::sm90 {

// [bytes/us] device memory
constexpr double kDramRate = 5.439e6;
// [bytes] read since, after which L2 no longer holds what may be read again
constexpr double kL2Capacity = 12.69e6;
// [bytes/us] from L2 into all multiprocessors
constexpr double kL2Rate = 28.32e6;
// [multiply-adds/us] tensor cores of a multiprocessor
constexpr double kMmaRate = 3.674e6;
// [x] of that rate where three warpgroups take turns
constexpr double kThreeConsumers = 0.9533;
// [bytes/us] shared memory of a multiprocessor
constexpr double kSharedRate = 306.2e3;
// [x] more time in multiprocessors, at most, where power lowers their clock
constexpr double kThrottle = 0.2025;
// [multiply-adds] of a product that has half of kThrottle
constexpr double kThrottleWork = 27.05e10;
// [us] launch, and the first bytes' way from memory
constexpr double kLaunch = 1.971;
// [us] more, until all stages of the ring have been asked for
constexpr double kRingFill = 0.1336;
// [us] less, where two blocks share a multiprocessor
constexpr double kTwoBlocksLaunch = 0.3293;
// [us] more, where blocks form clusters
constexpr double kClusterLaunch = 0.5103;
// [us] more for each step of k where blocks of a cluster share loads
constexpr double kClusterStep = 0.0009225;
// [us] the same for tiles of 64 rows
constexpr double kClusterStep64 = 0.007841;
// [us] the second kernel of a split K
constexpr double kReduceLaunch = 2.377;
// [us] blocks of a cluster that share K: until they begin to exchange sums
constexpr double kGatherStart = 0.04741;
// [values/us] such sums, sent and added by a block
constexpr double kGatherRate = 2632;
// [bytes/us] partial results of a split K, written and read again
constexpr double kPartialsRate = 2.623e6;
// [us] epilogue of 128 x 128 results of 2 bytes by a ping-pong warpgroup
constexpr double kEpilogue = 0.8675;
// [x] times that for a cooperative tile, divided by its warpgroups
constexpr double kCooperativeEpilogue = 1.55;
// [x] of the epilogue where operands have 8 bits and results 32, for each of their bytes
constexpr double kWideResults = 1.36;
// [us] from one ping-pong warpgroup's main loop to the other's
constexpr double kHandover = 0.2661;
// [x] more epilogue for each halving of a strip's columns, about
constexpr double kNarrowStrip = 0.4646;
// [x] of the epilogue where operands are swapped
constexpr double kSwappedEpilogue = 0.5849;
// [x] of the epilogue of partial results where operands are swapped
constexpr double kSwappedPartials = 1.887;
// [x] of the epilogue of a ping-pong tile to unaligned rows, in strips of 64 columns
constexpr double kUnalignedRows64 = 1.441;
// [x] the same in strips of 32 columns
constexpr double kUnalignedRows32 = 6.768;
// [x] the same in strips of 16 columns
constexpr double kUnalignedRows16 = 13;
// [x] of the epilogue of a cooperative tile, in strips of 64 columns
constexpr double kCooperativeUnalignedRows64 = 2.982;
// [x] the same in narrower strips
constexpr double kCooperativeUnalignedRows = 4.161;
// [x] of kSwappedEpilogue where D's rows are unaligned
constexpr double kUnalignedSwapped = 6.603;
// [x] of memory traffic of results in unaligned rows
constexpr double kTrafficUnaligned = 2.376;
// [x] the same where operands are swapped
constexpr double kTrafficUnalignedSwapped = 6.831;
// [x] of memory traffic of results in rows that straddle lines of L2 but no sectors
constexpr double kTrafficLines = 1.077;
// [x] the same in rows that straddle sectors of 32 bytes too
constexpr double kTrafficSectors = 1.517;
// [x] times that where operands are swapped
constexpr double kTrafficSwapped = 2.36;
// [x] of memory traffic of partial results, of which L2 keeps some until they are read
constexpr double kPartialTraffic = 0.3;
// [x] of the epilogue by its kind, in a ping-pong tile
constexpr double kFinish[] = {1, 1.899, 3.974, 3.448};
// [x] of the epilogue by its kind, in a cooperative tile
constexpr double kCooperativeFinish[] = {1, 1.968, 4.042, 2.542};
// [bytes/us] loaded and shifted by a multiprocessor
constexpr double kRealignRate = 48.21e3;
// [us] more for each line of a stage that is shifted
constexpr double kRealignLine = 0.001489;
// [x] of loading MN-major blocks of 32 rows, in pieces of 64 bytes
constexpr double kNarrowBlock = 3.348;
// [x] of loading rows that straddle lines and sectors of L2
constexpr double kStraddleLines = 3.881;
// [x] of loading rows that straddle lines of L2 but no sectors
constexpr double kStraddleSectors = 2.294;
// [x] times either where tiles have every eighth row
constexpr double kStraddleEveryEighth = 1.32;
// [x] of loading an operand that has just been copied
constexpr double kCopiedLoads = 1.401;
// [us] for each time that a line of L2 is loaded again
constexpr double kLineReload = 0.0008791;
// [bytes/us] out of L2, each line once to all who ask at the same time
constexpr double kL2SendRate = 9.574e6;
// [exponent] the two rates of L2
constexpr double kL2Bound = 5.345;
// [x] part of what blocks of a GPC share that L2 sends again, as they drift apart
constexpr double kDrift = 0.04613;
// [x] the same where operands have 8 bits, of which steps are shorter
constexpr double kByteDrift = 0.7081;
// [us] from a load to its bytes, which the stages of the ring share
constexpr double kStageLatency = 0.8221;
// [x] part of a step's L2 time that is left on an otherwise idle machine
constexpr double kIdleL2 = 0.03679;
// [exponent] multiplying and loading within a step
constexpr double kStepOverlap = 4.066;
// [us] the shortest step: instructions of a warpgroup's loop
constexpr double kMinStep = 0.07315;
// [exponent] the shortest step and what it does
constexpr double kMinStepOverlap = 3.286;
// [exponent] multiprocessors and device memory
constexpr double kMemoryOverlap = 1.8;
// [exponent] the same where two blocks share a multiprocessor
constexpr double kMemoryOverlapTwoBlocks = 1.974;
// [bytes/us] of an operand that is copied, read and written
constexpr double kRepackRate = 7.139e6;
// [x] weight of what is written, in whole lines, against what is read
constexpr double kRepackWrite = 2.211;
// [us] the copying kernel
constexpr double kRepackLaunch = 1.497;
// [us] of a step of planes: loading, and sums that are added up in registers
constexpr double kPlaneStep = 0.06121;
// [exponent] that and multiplying
constexpr double kPlaneOverlap = 0.9429;
// [x] a cooperative tile's results of planes, times its warpgroups
constexpr double kPlaneStores = 6.115;
// [x] the same where operands are swapped
constexpr double kPlaneStoresSwapped = 2.56;
// [us] of a step of 64 rows of x of 8 bits that a warpgroup transposes in registers
constexpr double kTurn = 0.04442;
// [exponent] that and multiplying
constexpr double kTurnOverlap = 2.632;
// [bytes/us] of the pass that splits operands into planes, read and written
constexpr double kSplitRate = 4.426e6;
// [us] that pass's kernel
constexpr double kSplitLaunch = 2.592;

}  // namespace jaxgemm::cuda::sm90
