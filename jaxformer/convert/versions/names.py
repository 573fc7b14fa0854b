"""Names that transformers 4 and 5 know, of 4.57.6 and 5.24.0: model types, activations, and torch's types of numbers."""

from difflib import get_close_matches
from typing import NamedTuple

_TYPES = """aimv2 aimv2_vision_model albert align altclip apertus arcee aria aria_text audio-spectrogram-transformer
autoformer aya_vision bamba bark bart beit bert bert-generation big_bird bigbird_pegasus biogpt bit bitnet blenderbot
blenderbot-small blip blip-2 blip_2_qformer bloom blt bridgetower bros camembert canine chameleon chinese_clip
chinese_clip_vision_model clap clip clip_text_model clip_vision_model clipseg clvp codegen cohere cohere2 cohere2_vision
colpali colqwen2 conditional_detr convbert convnext convnextv2 cpmant csm ctrl cvt d_fine dab-detr dac data2vec-audio
data2vec-text data2vec-vision dbrx deberta deberta-v2 decision_transformer deepseek_v2 deepseek_v3 deepseek_vl
deepseek_vl_hybrid deformable_detr deit depth_anything depth_pro detr dia diffllama dinat dinov2 dinov2_with_registers
dinov3_convnext dinov3_vit distilbert doge donut-swin dots1 dpr dpt edgetam edgetam_video edgetam_vision_model
efficientloftr efficientnet electra emu3 encodec encoder-decoder eomt ernie ernie4_5 ernie4_5_moe esm evolla exaone4 falcon
falcon_h1 falcon_mamba fastspeech2_conformer fastspeech2_conformer_with_hifigan flaubert flava flex_olmo florence2 fnet
focalnet fsmt funnel fuyu gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_audio gemma3n_text gemma3n_vision git glm glm4
glm4_moe glm4v glm4v_moe glm4v_moe_text glm4v_text glpn got_ocr2 gpt-sw3 gpt2 gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese
gpt_oss gptj granite granite_speech granitemoe granitemoehybrid granitemoeshared grounding-dino groupvit helium hgnet_v2
hiera hubert hunyuan_v1_dense hunyuan_v1_moe ibert idefics idefics2 idefics3 idefics3_vision ijepa imagegpt informer
instructblip instructblipvideo internvl internvl_vision jamba janus jetmoe kosmos-2 kosmos-2.5 kyutai_speech_to_text
layoutlm layoutlmv2 layoutlmv3 led levit lfm2 lfm2_vl lightglue lilt llama llama4 llama4_text llava llava_next
llava_next_video llava_onevision longcat_flash longformer longt5 luke lxmert m2m_100 mamba mamba2 marian markuplm
mask2former maskformer maskformer-swin mbart megatron-bert metaclip_2 mgp-str mimi minimax ministral mistral mistral3
mixtral mlcd mllama mm-grounding-dino mobilebert mobilenet_v1 mobilenet_v2 mobilevit mobilevitv2 modernbert
modernbert-decoder moonshine moshi mpnet mpt mra mt5 musicgen musicgen_melody mvp nemotron nllb-moe nougat nystromformer
olmo olmo2 olmo3 olmoe omdet-turbo oneformer openai-gpt opt ovis2 owlv2 owlvit paligemma parakeet_ctc parakeet_encoder
patchtsmixer patchtst pegasus pegasus_x perceiver perception_lm persimmon phi phi3 phi4_multimodal phimoe pix2struct pixtral
plbart poolformer pop2piano prompt_depth_anything prophetnet pvt pvt_v2 qwen2 qwen2_5_omni qwen2_5_vl qwen2_5_vl_text
qwen2_audio qwen2_audio_encoder qwen2_moe qwen2_vl qwen2_vl_text qwen3 qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl
qwen3_vl_moe qwen3_vl_moe_text qwen3_vl_text rag recurrent_gemma reformer regnet rembert resnet roberta roberta-prelayernorm
roc_bert roformer rt_detr rt_detr_resnet rt_detr_v2 rwkv sam sam2 sam2_hiera_det_model sam2_video sam2_vision_model sam_hq
sam_hq_vision_model sam_vision_model seamless_m4t seamless_m4t_v2 seed_oss segformer seggpt sew sew-d shieldgemma2 siglip
siglip2 siglip2_vision_model siglip_vision_model smollm3 smolvlm smolvlm_vision speech-encoder-decoder speech_to_text
speecht5 splinter squeezebert stablelm starcoder2 superglue superpoint swiftformer swin swin2sr swinv2 switch_transformers
t5 t5gemma table-transformer tapas textnet time_series_transformer timesfm timesformer timm_backbone timm_wrapper trocr tvp
udop umt5 unispeech unispeech-sat univnet upernet vaultgemma video_llava videomae vilt vipllava vision-encoder-decoder
vision-text-dual-encoder visual_bert vit vit_mae vit_msn vitdet vitmatte vitpose vitpose_backbone vits vivit vjepa2 voxtral
voxtral_encoder wav2vec2 wav2vec2-bert wav2vec2-conformer wavlm whisper xclip xcodec xglm xlm xlm-roberta xlm-roberta-xl
xlnet xlstm xmod yolos yoso zamba zamba2 zoedepth"""
"""Model types that both know."""
_TYPES_OF_4 = """code_llama deta efficientformer ernie_m gptsan-japanese granitevision graphormer jukebox mctct mega nat
nezha open-llama perception_encoder qdqbert realm retribert speech_to_text_2 trajectory_transformer transfo-xl tvlt van
vit_hybrid xlm-prophetnet"""
"""Model types that only 4 knows."""
_TYPES_OF_5 = """EvollaModel afmoe aimv2_text_model align_text_model align_vision_model altclip_text_model
altclip_vision_model apertus1p5 apertus1p5_text apertus1p5_vision_tokenizer audioflamingo3 audioflamingo3_encoder axk1 axk2
bailing_hybrid beam blip_2_vision_model blip_text_model blip_vision_model blt_global_transformer blt_local_decoder
blt_local_encoder blt_patcher bridgetower_text_model bridgetower_vision_model canary canary_decoder chameleon_vqgan
chinese_clip_text_model chmv2 clap_audio_model clap_text_model clipseg_text_model clipseg_vision_model clvp_decoder
clvp_encoder cohere2_moe cohere_asr cohere_compass cohere_compass_text cohere_compass_vision colmodernvbert cosmos3_edge
cosmos3_edge_text cosmos3_edge_vision cosmos3_omni csm_depth_decoder_model cwm deepseek_ocr2 deepseek_ocr2_encoder
deepseek_ocr2_sam_vision_model deepseek_ocr2_text deepseek_ocr2_vision deepseek_v32 deepseek_v4 deimv2 dia_decoder
dia_encoder diffusion_gemma diffusion_gemma_text dory dots3_note dots3_note_audio_encoder dots3_note_text
dots3_note_vision_encoder edgetam_mask_decoder edgetam_prompt_encoder edgetam_video_mask_decoder
edgetam_video_prompt_encoder embedding_gemma2 embedding_gemma2_text emu3_text_model emu3_vqgan eomt_dinov3 ernie4_5_vl_moe
ernie4_5_vl_moe_text ernie4_5_vl_moe_vision esmc esmfold2 eurobert exaone exaone4_5 exaone4_5_vision exaone_moe fast_vlm
fastspeech2_conformer_hifigan flava_image_codebook flava_image_model flava_multimodal_model flava_text_model flint
florence_vision fun_asr_nano fun_asr_nano_encoder gemma4 gemma4_assistant gemma4_audio gemma4_text gemma4_unified
gemma4_unified_assistant gemma4_unified_audio gemma4_unified_text gemma4_unified_vision gemma4_vision git_vision_model
glm46v glm4_moe_lite glm4v_moe_vision glm4v_vision glm5_next glm5_next_text glm5_next_vision glm_image glm_image_text
glm_image_vision glm_image_vqmodel glm_moe_dsa glm_ocr glm_ocr_text glm_ocr_vision glmasr glmasr_encoder glmga
got_ocr2_vision gradium_phonon_tts granite4_vision granite4_vision_text granite_docling granite_docling_text
granite_docling_vision granite_speech5_ctc granite_speech5_encoder granite_speech_encoder granite_speech_plus
granite_speech_plus_encoder granite_swa granitemoe_swa groupvit_text_model groupvit_vision_model gte higgs_audio_v2
higgs_audio_v2_tokenizer hrm_text hunyuan_vl hunyuan_vl_text hunyuan_vl_vision hy_v3 hy_v4 hy_v4_vl hy_v4_vl_text
hy_v4_vl_vision hyperclovax hyperclovax_vision_v2 idefics2_perceiver idefics2_vision idefics_perciever idefics_vision
inkling2 inkling2_loop inkling2_loop_text inkling2_text inkling2_vision inkling_audio inkling_mm_model inkling_text
inkling_vision instructblip_qformer instructblip_vision_model instructblipvideo_qformer instructblipvideo_vision_model
internlm3 iquestcoder jais2 janus_vision_model janus_vqgan jev jina_embeddings_v3 kimi_k25 kimi_k25_vision kimi_linear
kolibri1 kosmos_2_5_text_model kosmos_2_5_vision_model kosmos_2_text_model kosmos_2_vision_model laguna lara_mini lasr_ctc
lasr_encoder layoutxlm lfm2_moe lfm3 lfm3_vl lfm3_vl_vision lighton_ocr llama4_vision_model lw_detr lw_detr_vit mellum
metaclip_2_text_model metaclip_2_vision_model mimi_decoder mimi_encoder mimo_v2_flash minicpm3 minicpm_ocr
minicpm_ocr_vision minicpmv4_6 minicpmv4_6_vision minicpmv4_7 minicpmv4_7_vision minimax_m2 minimax_m3_vl minimax_m3_vl_text
minimax_m3_vl_vision ministral3 mistral4 mistral_large4 mistral_large4_text mlcd_vision_model mllama_text_model
mllama_vision_model modernvbert molmo2 molmo2_adapter molmo2_text molmo2_vision moonshine_streaming
moonshine_streaming_encoder moshi_depth moss_transcribe_diarize moss_transcribe_diarize_audio muse_glimmer
muse_glimmer_assistant muse_glimmer_text muse_glimmer_vision muse_spark muse_spark_audio muse_spark_text muse_spark_vision
musicflamingo musicgen_decoder musicgen_melody_decoder nanochat nemo_speechlm nemotron3_5_asr
nemotron3_5_transcribe_asr_audio nemotron3_5_transcribe_audio nemotron3_5_transcribe_word_timestamp nemotron3_diarization
nemotron3_diarization_audio nemotron_asr_streaming nemotron_asr_streaming_encoder nemotron_h nemotron_h_omni neomme neucodec
nomic_bert olmo_hybrid omniasr omniasr_audio omniasr_ctc openai_privacy_filter ovis2_vision owlv2_text_model
owlv2_vision_model owlvit_text_model owlvit_vision_model paddleocr_vl paddleocr_vl_text paddleocr_vl_vision parakeet_rnnt
parakeet_tdt pe_audio pe_audio_encoder pe_audio_video pe_audio_video_encoder pe_video pe_video_encoder phi4_multimodal_audio
phi4_multimodal_vision pi0 pix2struct_text_model pix2struct_vision_model pixio pocket_tts pocket_tts_audio_tokenizer
pocket_tts_audio_tokenizer_decoder pocket_tts_audio_tokenizer_encoder pp_chart2table pp_chart2table_vision pp_doclayout_v2
pp_doclayout_v3 pp_doclayout_v4 pp_formulanet pp_formulanet_text pp_formulanet_vision pp_lcnet pp_lcnet_v3 pp_lcnet_v4
pp_ocrv5_mobile_det pp_ocrv5_mobile_rec pp_ocrv5_server_det pp_ocrv5_server_rec pp_ocrv6_medium_det pp_ocrv6_small_det
pp_ocrv6_small_rec pp_ocrv6_tiny_rec qianfan_ocr qianfan_ocr_vision qwen2_5_omni_audio_encoder qwen2_5_omni_bigvgan
qwen2_5_omni_dit qwen2_5_omni_talker qwen2_5_omni_text qwen2_5_omni_thinker qwen2_5_omni_token2wav
qwen2_5_omni_vision_encoder qwen2_5_vl_vision qwen2_vl_vision qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_moe_vision
qwen3_5_text qwen3_5_vision qwen3_asr qwen3_asr_encoder qwen3_omni_moe_audio_encoder qwen3_omni_moe_talker_code_predictor
qwen3_omni_moe_talker_text qwen3_omni_moe_text qwen3_omni_moe_thinker qwen3_omni_moe_vision_encoder qwen3_vl_moe_vision
qwen3_vl_vision qwen4_exp qwen4_exp_text qwen4_exp_vision radio rf_detr rf_detr_dinov2 sam2_mask_decoder sam2_prompt_encoder
sam2_video_mask_decoder sam2_video_prompt_encoder sam3 sam3_detr_decoder sam3_detr_encoder sam3_geometry_encoder
sam3_lite_text sam3_lite_text_detr_decoder sam3_lite_text_detr_encoder sam3_lite_text_geometry_encoder
sam3_lite_text_mask_decoder sam3_lite_text_text_model sam3_mask_decoder sam3_tracker sam3_tracker_mask_decoder
sam3_tracker_prompt_encoder sam3_tracker_video sam3_tracker_video_mask_decoder sam3_tracker_video_prompt_encoder sam3_video
sam3_vision_model sam3_vit_model sam_hq_mask_decoder sam_hq_prompt_encoder sam_mask_decoder sam_prompt_encoder sapiens2
sapiens2_head sarvam_mla sarvam_moe siglip2_text_model siglip_text_model slanet slanext slanext_vision solar_open
speecht5_hifigan step3p5 step3p5_vision step3p7 t5_gemma_module t5gemma2 t5gemma2_decoder t5gemma2_encoder t5gemma2_text
timesfm2_5 tipsv2 tipsv2_dpt tipsv2_text_model tipsv2_vision_model ultrabert ultravbert unlimited_ocr
unlimited_ocr_sam_vision_model unlimited_ocr_text unlimited_ocr_vision unlimited_ocr_vision_encoder uvdoc uvdoc_backbone
vibevoice vibevoice_acoustic_tokenizer vibevoice_acoustic_tokenizer_decoder vibevoice_acoustic_tokenizer_encoder
vibevoice_asr vibevoice_diffusion video_llama_3 video_llama_3_vision videomt videoprism videoprism_text_model
videoprism_vision_model voxtral_realtime voxtral_realtime_encoder voxtral_realtime_text wavtokenizer wavtokenizer_encoder
xclip_text_model xclip_vision_model xcodec2 youtu zaya"""
"""Model types that only 5 knows."""
_ACTIVATIONS = """gelu gelu_10 gelu_accurate gelu_fast gelu_new gelu_python gelu_python_tanh gelu_pytorch_tanh laplace
leaky_relu linear mish prelu quick_gelu relu relu2 relu6 sigmoid silu swish tanh xielu"""
"""Activations that both know."""
_NUMBERS = """bfloat16 bool cdouble cfloat chalf complex128 complex32 complex64 double float float16 float32
float4_e2m1fn_x2 float64 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu half int int16 int32 int64
int8 long short uint16 uint32 uint64 uint8"""
"""Types of numbers that torch has."""


class Names(NamedTuple):
    """Names that each version knows."""

    four: frozenset[str]
    five: frozenset[str]

    def near(self, name: str) -> str:
        """Return a name like this one that both know, or an empty string."""
        return next(iter(get_close_matches(name, sorted(self.four & self.five), 1)), "")


def _names(both: str, four: str = "", five: str = "") -> Names:
    return Names(frozenset(f"{both} {four}".split()), frozenset(f"{both} {five}".split()))


TYPES = _names(_TYPES, _TYPES_OF_4, _TYPES_OF_5)
ACTIVATIONS = _names(_ACTIVATIONS, five="hardswish sqrtsoftplus")
NUMBERS = _names(_NUMBERS)
