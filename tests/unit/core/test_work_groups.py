"""What kernels and operators do, by their names."""

from __future__ import annotations

import pytest

from paceline.core.trace_events import KINDS, group_of

KERNELS = {
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc": "convolutions",
    "void cudnn::cnn::wgrad2d_grouped_direct_kernel<float>": "convolutions",
    "void cudnn::ops::convertTensor_kernel<float, __half>": "copies",
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT": "matrix products",
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_nn_align8>": "matrix products",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float>": "matrix products",
    "triton_tem_fused_addmm_12": "matrix products",
    "triton_poi_fused_addmm_gelu_3": "elementwise work",
    "triton_red_fused__native_batch_norm_legit_functional_7": "reductions",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>": "attention",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16": "attention",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention)": "attention",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>": "normalisation",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512>": "normalisation",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>": "the optimizer",
    "void at::native::elementwise_kernel<128, 2, gpu_kernel_impl<direct_copy_kernel_cuda>>": "copies",
    "Memset (Device)": "copies",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>": "elementwise work",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 7, true, false>": "reductions",
    "void at::native::embedding_backward_feature_kernel<float>": "indexing",
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL": "communication",
    "void at::native::multimem_all_reduce_kernel<float>": "communication",
    "void LSTM_elementWise_fp<float, float, float>": "recurrent layers",
    "my_own_kernel": "other work",
}

OPERATORS = {
    "aten::mkldnn_convolution": "convolutions",
    "aten::convolution_backward": "convolutions",
    "aten::mm": "matrix products",
    "aten::addmm": "matrix products",
    "aten::baddbmm": "matrix products",
    "aten::_scaled_mm": "matrix products",
    "aten::matmul": "matrix products",
    "aten::upsample_bilinear2d": "other work",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "attention",
    "aten::native_layer_norm_backward": "normalisation",
    "aten::normal_": "elementwise work",
    "aten::_fused_adamw_": "the optimizer",
    "aten::copy_": "copies",
    "aten::to": "copies",
    "aten::cat": "copies",
    "aten::add_": "elementwise work",
    "aten::threshold_backward": "elementwise work",
    "aten::gelu": "elementwise work",
    "aten::sum": "reductions",
    "aten::max_pool2d_with_indices": "reductions",
    "aten::embedding_dense_backward": "indexing",
    "aten::view": "dispatch",
    "aten::t": "dispatch",
    "aten::topk": "indexing",
    "autograd::engine::evaluate_function: ConvolutionBackward0": "dispatch",
    "ConvolutionBackward0": "dispatch",
    "Redistribute": "dispatch",
    "## Call CompiledFxGraph fvt6s3ps53e4unugjqxi ##": "compiled code",
    "CompiledFunctionBackward": "compiled code",
    "aten::mkldnn_rnn_layer": "recurrent layers",
    "gloo:all_reduce": "communication",
    "mine::secret": "other work",
}


@pytest.mark.parametrize(("name", "group"), KERNELS.items())
def test_a_kernel(name: str, group: str) -> None:
    assert group_of(name, on_device=True) == group


@pytest.mark.parametrize(("name", "group"), OPERATORS.items())
def test_an_operator(name: str, group: str) -> None:
    assert group_of(name, on_device=False) == group


def test_every_group_has_a_kind() -> None:
    assert {*KERNELS.values(), *OPERATORS.values()} == set(KINDS)
