// Trains a small network on MNIST: mnist [DIRECTORY [STEPS]]
#include <cstdio>
#include <cstdlib>
#include <cuttle/cuttle.hpp>
namespace ct = cuttle;

struct Net : ct::nn::Module {
  ct::nn::Conv2d conv1{1, 32, {.kernel = 3, .padding = 1}}, conv2{32, 64, {.kernel = 3, .padding = 1}};
  ct::nn::Linear fc{64 * 7 * 7, 10};
  Net() {
    add("conv1", conv1);
    add("conv2", conv2);
    add("fc", fc);
  }
  ct::Tensor forward(const ct::Tensor& x) override {
    auto h = ct::max_pool2d(ct::relu_(conv1(x)), {.kernel = 2});
    h = ct::max_pool2d(ct::relu_(conv2(h)), {.kernel = 2});
    return fc(ct::flatten(h));
  }
};

int main(int argc, char** argv) try {
  const char* directory = argc > 1 ? argv[1] : "data/mnist";
  const long last_step = argc > 2 ? std::atol(argv[2]) : 469;  // one epoch

  ct::Device device = ct::best_device();
  auto digits = ct::data::mnist(directory, ct::data::Split::train);
  Net net;
  net.to(device);
  ct::optim::SGD sgd{net.parameters(), {.lr = 0.05, .momentum = 0.9}};

  long step = 0;
  for (auto [images, labels] : ct::data::Loader{digits, {.batch = 128, .shuffle = true, .device = device}}) {
    auto logits = net(images);
    auto loss = ct::cross_entropy(logits, labels);
    loss.backward();
    sgd.step();
    sgd.zero_grad();
    if (++step % 50 == 1 || step == last_step) {
      std::printf("step %3ld  loss %.4f  accuracy %.3f\n", step, loss.item<double>(), ct::accuracy(logits, labels));
    }
    if (step == last_step) break;
  }
} catch (const ct::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
